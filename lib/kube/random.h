/*
 * random.h — jitter: numbers from a seed (splitmix64), so that tests can tell them. Not for secrets. Pure.
 */
#ifndef KUBE_RANDOM_H
#define KUBE_RANDOM_H

#include <stdint.h>

static inline uint64_t kube_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 <= x < bound; 0 when bound is not positive. */
static inline int64_t kube_random_below(uint64_t *state, int64_t bound)
{
    return bound > 0 ? (int64_t)(kube_random(state) % (uint64_t)bound) : 0;
}

#endif
