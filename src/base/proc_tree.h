/* proc_tree.h - a process and its descendants, as /proc shows them.
 *
 * A kernel without /proc/PID/task/TID/children shows the process alone.
 *
 * thread: any; nothing is kept. */
#ifndef ML_BASE_PROC_TREE_H
#define ML_BASE_PROC_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ML_PROC_TREE_MAX 256 /* processes that are looked at */

/* The process first, then its descendants; returns how many. */
int ml_proc_tree(pid_t *out /* [ML_PROC_TREE_MAX] */, pid_t root);

/* Whether these processes together have more than `limit` bytes resident.  Pages that they
 * share count once where the kernel tells (smaps_rollup). */
bool ml_proc_over(const pid_t *pid, int n, int64_t limit);

#endif
