/* Flags of the router of a run (run/run_router.h): those of miles router, with a prefix. */
#include "cli/flags/flag_rows.h"

#define GROUP "router of the run"

/* The first four are ml_route_kind. */
static const char *const policies[] = { "cache_aware", "round_robin", "least_loaded",
                                        "consistent_hashing", NULL };

#define ROUTER_F64(word, field, otherwise, least, most, sentence)                          \
    {                                                                                      \
        .name = "router-" word, .type = ML_FLAG_F64, ML_AT(run.router.field),              \
        .value = "N", .def = otherwise, .min = least, .max = most, .group = GROUP,         \
        .help = sentence                                                                   \
    }
#define ROUTER_I64(word, field, otherwise, least, most, sentence)                          \
    {                                                                                      \
        .name = "router-" word, .type = ML_FLAG_I64, ML_AT(run.router.field),              \
        .def = otherwise, .min = least, .max = most, .group = GROUP, .help = sentence      \
    }
#define ROUTER_BYTES(word, field, otherwise, sentence)                                     \
    {                                                                                      \
        .name = "router-" word, .type = ML_FLAG_BYTES, ML_AT(run.router.field),            \
        .def = otherwise, .min = 4096, .max = 1e12, .group = GROUP, .help = sentence       \
    }

const ml_flag ml_flags_run_router[] = {
    { .name = "sglang-router-ip",
      .type = ML_FLAG_TEXT,
      ML_AT(run.mode.router_ip),
      .value = "HOST",
      .group = GROUP,
      .help =
          "Generate with the workers of a router that runs already, miles router or "
          "SGLang's, at --sglang-router-port; like --rollout-external with its address." },
    { .name = "sglang-router-port",
      .type = ML_FLAG_I64,
      ML_AT(run.router.port),
      .def = "-1",
      .def_note = "any free port",
      .min = -1,
      .max = 65535,
      .group = GROUP,
      .help = "Port of the router: of --sglang-router-ip; or of the run's own, one address "
              "for all its engines, which engines join with POST /add_worker.  A run with "
              "several remote engines has one; SAVE/router.json has its address and key." },
    ML_SAME("router-port", I64, "N", SGLANG, ML_CMD_TRAIN, GROUP, "sglang-router-port"),
    { .name = "router-host",
      .type = ML_FLAG_TEXT,
      ML_AT(run.router.host),
      .value = "NAME",
      .def = "127.0.0.1",
      .group = GROUP,
      .help = "Address at which the run's router listens; 0.0.0.0 for all." },
    { .name = "router-policy",
      .type = ML_FLAG_WORD,
      ML_AT(run.router.route.kind),
      .def = "least_loaded",
      .words = policies,
      .group = GROUP,
      .help =
          "How an engine is selected, for requests to the router and for those of the run "
          "itself; see miles router --policy.  Results do not depend on it." },
    ML_SAME("sglang-router-policy", TEXT, "WORD", SGLANG, ML_CMD_TRAIN, GROUP,
            "router-policy"),
    ROUTER_F64("cache-threshold", route.cache_threshold, "0.3", 0, 1,
               "cache_aware: minimum fraction of a prompt that must match."),
    ROUTER_I64("balance-abs-threshold", route.balance_abs, "64", 0, 1e9,
               "cache_aware: loads are imbalanced if they differ by more than this ..."),
    ROUTER_F64("balance-rel-threshold", route.balance_rel, "1.5", 1, 1e9,
               "... and by more than this factor."),
    ROUTER_BYTES("max-tree-size", route.tree_bytes, "64MiB",
                 "Memory for the tree of prompt prefixes."),
    ROUTER_F64("health-check-interval-secs", health_interval_s, "60", 0.01, 1e9,
               "Time between the router's health checks of an engine."),
    ROUTER_F64("health-check-timeout-secs", health_timeout_s, "5", 0.01, 1e9,
               "Timeout of such a health check."),
    { .name = "router-health-check-endpoint",
      .type = ML_FLAG_TEXT,
      ML_AT(run.router.health_path),
      .value = "PATH",
      .def = "/health",
      .group = GROUP,
      .help = "Path of the router's health check." },
    ROUTER_I64("health-failure-threshold", failure_threshold, "3", 1, 1000000,
               "Consecutive failures after which the router passes over an engine."),
    ROUTER_I64("health-success-threshold", success_threshold, "2", 1, 1000000,
               "Consecutive successes after which it uses the engine again."),
    { .name = "router-disable-health-check",
      .type = ML_FLAG_BOOL,
      ML_AT(run.no_router_health),
      .group = GROUP,
      .help = "The router does not check engines." },
    ROUTER_I64("retry-max-retries", max_retries, "5", 0, 15,
               "Number of other engines that the router tries for a request."),
    { .name = "router-disable-retries",
      .type = ML_FLAG_BOOL,
      ML_AT(run.no_router_retries),
      .group = GROUP,
      .help = "The router does not retry failed requests." },
    ROUTER_F64("request-timeout-secs", request_timeout_s, "1800", 0, 1e9,
               "Timeout of a request to the router; 0: no limit."),
    ROUTER_F64("connect-timeout-secs", connect_timeout_s, "10", 0.01, 1e9,
               "Timeout for connecting to an engine."),
    ROUTER_I64("max-concurrent-requests", max_concurrent, "-1", -1, 1e9,
               "Maximum number of the router's concurrent requests; -1: no limit."),
    ROUTER_BYTES("max-payload-size", max_body, "512MiB",
                 "Maximum size of a request to the router."),
    { 0 },
};
