/* The system calls of a program in a sandbox. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/sandbox_priv.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#define FIELD(name) ((uint32_t)offsetof(struct seccomp_data, name))
#define LOAD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIELD(name))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (value))
#define REFUSE(code) (SECCOMP_RET_ERRNO | (code))
#define DENY(call)                                                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), RETURN(REFUSE(EPERM))

#define NAMESPACES                                                                         \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |            \
     CLONE_NEWUTS | CLONE_NEWCGROUP)

/* Calls that a program for a coding task does not need and that reach much of the kernel: new
 * namespaces and mounts, tracing, keys, BPF, modules, clocks.  Of sockets only local ones can
 * be made; the network namespace has no interface anyway.  clone3 passes its flags in memory,
 * which a filter cannot read: without it libc uses clone. */
static struct sock_filter filter[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
    RETURN(SECCOMP_RET_KILL_PROCESS),
    LOAD(nr),
#if defined(__x86_64__)
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), /* the x32 ABI */
    RETURN(SECCOMP_RET_KILL_PROCESS),
#endif
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
    RETURN(REFUSE(ENOSYS)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1),
    RETURN(REFUSE(EPERM)),
    RETURN(SECCOMP_RET_ALLOW),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 4),
    LOAD(args[0]),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0),
    RETURN(REFUSE(EACCES)),
    RETURN(SECCOMP_RET_ALLOW),
    DENY(unshare),
    DENY(setns),
    DENY(mount),
    DENY(umount2),
    DENY(pivot_root),
    DENY(chroot),
    DENY(ptrace),
    DENY(process_vm_readv),
    DENY(process_vm_writev),
    DENY(bpf),
    DENY(perf_event_open),
    DENY(userfaultfd),
    DENY(keyctl),
    DENY(add_key),
    DENY(request_key),
    DENY(init_module),
    DENY(finit_module),
    DENY(delete_module),
    DENY(kexec_load),
    DENY(open_by_handle_at),
    DENY(name_to_handle_at),
    DENY(fsopen),
    DENY(fsmount),
    DENY(move_mount),
    DENY(open_tree),
    DENY(io_uring_setup),
    DENY(quotactl),
    DENY(acct),
    DENY(swapon),
    DENY(swapoff),
    DENY(reboot),
    DENY(settimeofday),
    DENY(clock_settime),
    DENY(sethostname),
    DENY(personality),
    RETURN(SECCOMP_RET_ALLOW),
};

bool ml_sandbox_filter(void) {
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };

    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}
