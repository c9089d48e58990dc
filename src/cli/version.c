/* version.c - miles --version: version, commit, parts that are present, libraries. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include <brotli/decode.h>
#include <event2/event.h>
#include <lz4.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <sqlite3.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#include "backend/cuda_door.h"
#include "base/library.h"
#include "cli/cli.h"
#include "comm/mpi_door.h"

#ifndef ML_COMMIT
#define ML_COMMIT "" /* built outside a git checkout */
#endif

static void optional_part(ml_text *out, const char *what, const char *library) {
    char path[5000];

    if (ml_library_find(path, sizeof path, library))
        ml_text_printf(out, "%s: %s\n", what, path);
    else
        ml_text_printf(out, "%s: %s is not installed\n", what, library);
}

/* As 0xMMmmppp, major, minor and patch. */
static void brotli_version(ml_text *out) {
    uint32_t v = BrotliDecoderVersion();

    ml_text_printf(out, ", brotli %u.%u.%u", v >> 24, v >> 12 & 0xfff, v & 0xfff);
}

static void libraries(ml_text *out) {
    char pcre2[80] = "";
    unsigned xxh = XXH_versionNumber();

    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    ml_text_printf(out, "libraries: libevent %s, pcre2 %s, utf8proc %s, zstd %s",
                   event_get_version(), pcre2, utf8proc_version(), ZSTD_versionString());
    ml_text_printf(out, ", xxhash %u.%u.%u, zlib %s, lz4 %s, snappy", xxh / 10000,
                   xxh / 100 % 100, xxh % 100, zlibVersion(), LZ4_versionString());
    brotli_version(out);
    ml_text_printf(out, ", sqlite %s, yaml %s, %s\n", sqlite3_libversion(),
                   yaml_get_version_string(), OpenSSL_version(OPENSSL_VERSION));
}

void ml_version_text(ml_text *out) {
    ml_text_printf(out, "miles %s%s%s\n", ML_VERSION, *ML_COMMIT ? " " : "", ML_COMMIT);
    ml_text_printf(out, "compiler: %s\n", __VERSION__);
    optional_part(out, "CUDA", ML_CUDA_LIBRARY);
    optional_part(out, "MPI", ML_MPI_LIBRARY);
    libraries(out);
}
