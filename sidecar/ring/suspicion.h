/*
 * suspicion.h — which peers are taken for lost because they say nothing. Pure: times come in, words come out.
 *
 * Silence begins at the last sign of life of a peer. After suspect_ms others are asked whether they hear it; after dead_ms it is
 * lost, unless somebody else heard it in that time; after cut_ms it is lost even so, because a ring with a broken pair cannot
 * go on. What this process slept through itself (it was stopped, or its cgroup throttled) is nobody's silence.
 */
#ifndef SIDECAR_RING_SUSPICION_H
#define SIDECAR_RING_SUSPICION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct suspicion_limits { int64_t beat_ms, suspect_ms, dead_ms, cut_ms; };

/* For losses that have to be known within `timeout_ms`, verdict and all: 1000 gives 100, 300, 700 and 900. */
struct suspicion_limits suspicion_limits_for(int64_t timeout_ms);

enum suspicion_word { SUSPICION_NONE, SUSPICION_ASK /* others, about this rank */, SUSPICION_LOST };
#define SUSPICION_WHY_MAX 128

struct suspicion;
struct suspicion *suspicion_new(const struct suspicion_limits *limits, int32_t size, int64_t now_ms);
void suspicion_free(struct suspicion *s); /* NULL is fine */

/* Ranks outside 0 to size-1 and ranks that are not watched are ignored everywhere: they come from peers. */
void suspicion_watch(struct suspicion *s, int32_t rank, int64_t now_ms); /* from now on it has to be heard */
void suspicion_heard(struct suspicion *s, int32_t rank, int64_t now_ms);
/* Another rank says that it heard `rank` silent_ms ago. */
void suspicion_vouched(struct suspicion *s, int32_t rank, int64_t silent_ms, int64_t now_ms);
/* -1: not watched. */
int64_t suspicion_silence(const struct suspicion *s, int32_t rank, int64_t now_ms);

/* To be called every beat_ms, after what has come in meanwhile was told. */
void suspicion_tick(struct suspicion *s, int64_t now_ms);
/* What is to be said about this rank now. LOST comes once and the rank is not watched any more; why does not hold measured times,
 * so that all who come to the same verdict say the same. */
enum suspicion_word suspicion_judge(struct suspicion *s, int32_t rank, int64_t now_ms, char ret_why[SUSPICION_WHY_MAX]);

#endif
