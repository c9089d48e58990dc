#!/usr/bin/env bash
# check-deps.sh [--install] GROUP... - are the programs and libraries of these groups here?
#
# Groups: build, test, ranks, lint, bench, arm.  Without --install it only looks, and names the
# packages that are missing; with it, apt-get brings them when this user may run it.
# shellcheck disable=SC2317 # the checks are called through `need`
set -u

install=no
if [ "${1-}" = --install ]; then
    install=yes
    shift
fi
cc=${CC:-gcc}
foreign= # what a package's name ends in when it is for the machine compiled for
case $cc in aarch64-linux-gnu-*) [ "$(uname -m)" = aarch64 ] || foreign=:arm64 ;; esac

have() { command -v "$1" >/dev/null 2>&1; }
compiles() { # compiles FLAGS...: does a program from standard input link?
    "$@" -x c - -o /dev/null >/dev/null 2>&1
}
can_fuzz() {
    echo '#include <stddef.h>
          int LLVMFuzzerTestOneInput(const char *p, size_t n) { (void)p; return n > 1u << 30; }' |
        compiles clang -fsanitize=fuzzer,address,undefined
}
can_link() { # can_link COMPILER HEADER LIBRARY, with the flags the build was given
    # shellcheck disable=SC2086
    echo "#define PCRE2_CODE_UNIT_WIDTH 8
          #include <$2>
          int main(void) { return 0; }" | compiles "$1" ${CFLAGS-} ${LDFLAGS-} -Wl,--no-as-needed "-l$3"
}
can_blas() { echo '#include <cblas.h>
int main(void) { return 0; }' | compiles gcc -lopenblas; }
can_cross() { echo 'int main(void) { return 0; }' | compiles aarch64-linux-gnu-gcc; }

missing=()
need() { # need PACKAGE CHECK...
    local package=$1
    shift
    "$@" || missing+=("$package")
}

# Debian has libevent's development files for one architecture at a time: for a foreign one,
# this machine's headers and the libraries themselves.
need_libevent() { # need_libevent COMPILER FOREIGN
    if [ -z "$2" ]; then
        need libevent-dev can_link "$1" event2/event.h event_core
        return
    fi
    need libevent-dev test -e /usr/include/event2/event.h
    for part in core extra openssl; do
        need "libevent-$part-2.1-7$2" can_link "$1" event2/event.h ":libevent_$part-2.1.so.7"
    done
}

need_libraries() { # need_libraries COMPILER FOREIGN
    need_libevent "$1" "$2"
    need "libpcre2-dev$2" can_link "$1" pcre2.h pcre2-8
    need "libutf8proc-dev$2" can_link "$1" utf8proc.h utf8proc
    need "libssl-dev$2" can_link "$1" openssl/ssl.h ssl
    need "libzstd-dev$2" can_link "$1" zstd.h zstd
    need "libxxhash-dev$2" can_link "$1" xxhash.h xxhash
    need "liblzma-dev$2" can_link "$1" lzma.h lzma
    need "zlib1g-dev$2" can_link "$1" zlib.h z
    need "libsnappy-dev$2" can_link "$1" snappy-c.h snappy
    need "liblz4-dev$2" can_link "$1" lz4.h lz4
    need "libbrotli-dev$2" can_link "$1" brotli/decode.h brotlidec
    need "libyaml-dev$2" can_link "$1" yaml.h yaml
    need "libsqlite3-dev$2" can_link "$1" sqlite3.h sqlite3
}

for group; do
    case $group in
    build)
        need make have make
        case $cc in
        aarch64-linux-gnu-gcc) need gcc-aarch64-linux-gnu can_cross ;;
        clang*) need clang have "$cc" ;;
        *) need gcc have "$cc" ;;
        esac
        need libc6-dev test -e /usr/include/stdio.h
        need_libraries "$cc" "$foreign"
        ;;
    test)
        need clang have clang
        need clang-format have clang-format
        need libclang-rt-dev can_fuzz
        need diffutils have cmp
        need zstd have zstd
        need python3 have python3
        need curl have curl
        need openssl have openssl
        ;;
    ranks) # several processes: mk/mpi.mk
        need libopenmpi-dev have mpicc
        need openmpi-bin have mpirun
        ;;
    lint)
        need clang-tidy have clang-tidy
        need cppcheck have cppcheck
        need shellcheck have shellcheck
        ;;
    bench) need libopenblas-dev can_blas ;;
    arm)
        need gcc-aarch64-linux-gnu can_cross
        need libc6-dev-arm64-cross can_cross
        need_libraries aarch64-linux-gnu-gcc :arm64
        need qemu-user have qemu-aarch64
        ;;
    *)
        echo "check-deps: no group called '$group' (build, test, ranks, lint, bench, arm)" >&2
        exit 2
        ;;
    esac
done

[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
line="${sudo[*]:+sudo }apt-get install -y --no-install-recommends ${missing[*]}"

if [ $install = yes ] && have apt-get && { [ ${#sudo[@]} -eq 0 ] || sudo -n true 2>/dev/null; }; then
    echo "check-deps: $line"
    case "${missing[*]}" in *:arm64*) "${sudo[@]}" dpkg --add-architecture arm64 ;; esac
    "${sudo[@]}" apt-get update -q >/dev/null
    # Another installation may be running: wait for its lock.
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install \
        -q -y --no-install-recommends "${missing[@]}" >/dev/null && exit 0
fi
echo "check-deps: missing for '$*': ${missing[*]}.  On Debian or Ubuntu:" >&2
echo "    $line" >&2
exit 1
