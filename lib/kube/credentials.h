/*
 * credentials.h — who we are, kept current: token files and credential plugins are read again when they are old. Internal to
 * client.c. Not thread-safe.
 */
#ifndef KUBE_CREDENTIALS_H
#define KUBE_CREDENTIALS_H

#include "kube/config.h"

struct kube_credentials {
    const struct kube_config *config;
    char *token;                   /* or NULL; borrowed from nobody */
    struct kube_credential plugin; /* what the plugin gave last */
    int64_t read_ms;               /* monotonic; 0 = never */
    bool stale;                    /* to be read again though it is not old */
};

/* Reads token and plugin for the first time. */
MUST_CHECK int kube_credentials_init(struct kube_credentials *c, const struct kube_config *config, int64_t now_ms, int64_t wall_ms,
                                     struct error *e);
/* Reads again what is old, or stale. What cannot be read stays as it was: the server says whether it still holds. */
void kube_credentials_refresh(struct kube_credentials *c, int64_t now_ms, int64_t wall_ms);
void kube_credentials_release(struct kube_credentials *c);

#endif
