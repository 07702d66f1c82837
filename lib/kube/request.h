/*
 * request.h — a request as HTTP, and an HTTP answer as an error. Internal to client.c. Pure.
 */
#ifndef KUBE_REQUEST_H
#define KUBE_REQUEST_H

#include "base/buf.h"
#include "kube/client.h"

#define KUBE_URL_MAX (16u << 10)
#define KUBE_BODY_MAX (3u << 20) /* the API server's own limit */
#define KUBE_WHAT_MAX 400

struct kube_http {
    const char *method;            /* static; so the next two */
    const char *accept;
    const char *content_type;      /* NULL = no body */
    char *target;                  /* path and query */
    char *body;                    /* or NULL */
    char what[KUBE_WHAT_MAX];      /* "create pods team-a/mnist-0", for messages */
};

/* ERROR_INVALID when the request makes no sense, ERROR_LIMIT when its body is too large. */
MUST_CHECK int kube_http_of(const struct kube_request *r, struct kube_http *ret, struct error *e);
void kube_http_release(struct kube_http *h);

/* What an answer that is no 2xx says: kind by reason and code, text by the server's message. `body` is the Status if the server sent
 * one, and anything at all if it did not. */
struct kube_status { char reason[64]; int64_t retry_after_ms; };
void kube_status_error(int http_status, const char *body, size_t len, const char *what, struct kube_status *ret, struct error *e);
/* The same for a Status that came as the object of a watch's ERROR event; *ret_code is its code. */
void kube_status_object_error(const cJSON *status, int *ret_code, struct kube_status *ret, struct error *e);

#endif
