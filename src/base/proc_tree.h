/* proc_tree.h - a process and its descendants, from /proc.
 *
 * Without /proc/PID/task/TID/children in the kernel, only the process itself is found.
 *
 * thread: any; no state. */
#ifndef ML_BASE_PROC_TREE_H
#define ML_BASE_PROC_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ML_PROC_TREE_MAX 256 /* maximum number of processes examined */

/* The process first, then its descendants; returns the count. */
int ml_proc_tree(pid_t *out /* [ML_PROC_TREE_MAX] */, pid_t root);

/* Whether these processes together have more than `limit` bytes resident.  Shared pages
 * count once if the kernel reports it (smaps_rollup). */
bool ml_proc_over(const pid_t *pid, int n, int64_t limit);

#endif
