/*
 * throttle.h — how many requests may be on their way to a server that says when it has too many. Pure.
 *
 * The window starts at its ceiling. Each 429 or 503 halves it, at most once a second, and holds everything back for as long as the
 * server asks; each full window of good answers widens it by one. There is no fixed rate: the server's own flow control decides.
 */
#ifndef KUBE_THROTTLE_H
#define KUBE_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

struct kube_throttle {
    uint32_t ceiling, window, in_flight, good;
    int64_t held_until_ms, halved_ms;
};

void kube_throttle_init(struct kube_throttle *t, uint32_t ceiling);
bool kube_throttle_may_send(const struct kube_throttle *t, int64_t now_ms);
void kube_throttle_sent(struct kube_throttle *t);
/* `busy`: 429 or 503. retry_after_ms 0 = the server did not say, one second is taken. */
void kube_throttle_answered(struct kube_throttle *t, bool busy, int64_t retry_after_ms, int64_t now_ms);
int64_t kube_throttle_wake_ms(const struct kube_throttle *t, int64_t now_ms); /* when a hold ends; 0 = no hold */

#endif
