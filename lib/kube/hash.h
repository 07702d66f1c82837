/*
 * hash.h — FNV-1a with a finishing mix, for the tables of this room. A process seeds it at random, so that nobody can choose
 * names that fall together. Pure.
 */
#ifndef KUBE_HASH_H
#define KUBE_HASH_H

#include <stdint.h>

static inline uint64_t kube_hash(uint64_t seed, const char *text)
{
    uint64_t h = seed ^ 0xcbf29ce484222325u;

    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    h ^= h >> 32;
    return h * 0xd6e8feb86659fd93u;
}

static inline uint64_t kube_hash_key(uint64_t seed, const char *ns, const char *name)
{
    uint64_t h = kube_hash(kube_hash(seed, ns), name);

    return h ^ (h >> 29);
}

#endif
