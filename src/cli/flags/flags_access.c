#include "cli/flags/flag.h"

#define SERVERS (ML_CMD_SERVE | ML_CMD_ROUTER)
#define WITH_CLIENT (SERVERS | ML_CMD_BENCH_SERVE)

/* Access to a server or a router; SECURITY.md has the rules. */
const ml_flag ml_flags_access[] = {
    { .name = "api-key",
      .type = ML_FLAG_TEXT,
      ML_AT(access.api_key),
      .value = "KEY",
      .env = "MILES_API_KEY",
      .secret = true,
      .group = "access",
      .cmds = WITH_CLIENT,
      .from = ML_FROM_SGLANG,
      .help = "Key that clients must send as \"Authorization: Bearer KEY\" for every path "
              "except /health; miles bench serve sends it.  Other users can see command "
              "lines: prefer --api-key-file." },
    { .name = "api-key-file",
      .type = ML_FLAG_PATH,
      ML_AT(access.api_key_file),
      .value = "FILE",
      .group = "access",
      .cmds = WITH_CLIENT,
      .help =
          "File that contains the key, not readable by other users; overrides --api-key." },
    { .name = "admin-api-key",
      .type = ML_FLAG_TEXT,
      ML_AT(access.admin_key),
      .value = "KEY",
      .env = "MILES_ADMIN_API_KEY",
      .def_note = "the value of --api-key, if set",
      .secret = true,
      .group = "access",
      .from = ML_FROM_SGLANG,
      .help = "Key for requests that change the server: weights, pauses, caches, memory, "
              "workers.  It is also accepted for every other request." },
    { .name = "admin-api-key-file",
      .type = ML_FLAG_PATH,
      ML_AT(access.admin_key_file),
      .value = "FILE",
      .group = "access",
      .help = "File that contains the admin key; overrides --admin-api-key." },
    { .name = "allowed-hosts",
      .type = ML_FLAG_LIST,
      ML_AT(access.hosts),
      .value = "NAME...",
      .group = "access",
      .help = "Values accepted in the Host header.  A server on a loopback address accepts "
              "localhost, 127.0.0.0/8, [::1] and these names; a server on another address "
              "accepts every name unless this flag is set." },
    { .name = "allowed-origins",
      .type = ML_FLAG_LIST,
      ML_AT(access.origins),
      .value = "ORIGIN...",
      .group = "access",
      .help = "Origins whose pages may call the server from a browser, such as "
              "https://example.org; requests from other origins are rejected." },
    { .name = "insecure",
      .type = ML_FLAG_BOOL,
      ML_AT(access.insecure),
      .group = "access",
      .help = "Allow listening on a non-loopback address without a key." },
    { .name = "worker-api-key",
      .type = ML_FLAG_TEXT,
      ML_AT(access.worker_key),
      .value = "KEY",
      .env = "MILES_WORKER_API_KEY",
      .secret = true,
      .group = "access",
      .cmds = ML_CMD_ROUTER,
      .help = "Key sent to the workers of --worker-urls only; workers added with POST "
              "/add_worker bring their own in \"api_key\"." },
    { .name = "worker-api-key-file",
      .type = ML_FLAG_PATH,
      ML_AT(access.worker_key_file),
      .value = "FILE",
      .group = "access",
      .cmds = ML_CMD_ROUTER,
      .help = "File that contains the worker key; overrides --worker-api-key." },
    { 0 },
};
