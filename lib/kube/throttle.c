#include "kube/throttle.h"

#include <stddef.h>

#define HALVE_AT_MOST_EVERY_MS 1000
#define RETRY_AFTER_DEFAULT_MS 1000
#define RETRY_AFTER_MAX_MS 60000 /* a server that asks for more is asked again anyway */

void kube_throttle_init(struct kube_throttle *t, uint32_t ceiling)
{
    if (ceiling == 0)
        ceiling = 1;
    *t = (struct kube_throttle){ .ceiling = ceiling, .window = ceiling, .in_flight = 0, .good = 0, .held_until_ms = 0,
                                 .halved_ms = INT64_MIN };
}

bool kube_throttle_may_send(const struct kube_throttle *t, int64_t now_ms)
{
    return t->in_flight < t->window && now_ms >= t->held_until_ms;
}

void kube_throttle_sent(struct kube_throttle *t)
{
    t->in_flight++;
}

void kube_throttle_answered(struct kube_throttle *t, bool busy, int64_t retry_after_ms, int64_t now_ms)
{
    if (t->in_flight > 0)
        t->in_flight--;
    if (!busy) {
        if (t->window < t->ceiling && ++t->good >= t->window) {
            t->window++;
            t->good = 0;
        }
        return;
    }
    /* The answers of one burst count once: they tell the same. */
    if (t->halved_ms == INT64_MIN || now_ms - t->halved_ms >= HALVE_AT_MOST_EVERY_MS) {
        t->window = t->window > 1 ? t->window / 2 : 1;
        t->halved_ms = now_ms;
    }
    t->good = 0;
    int64_t hold = retry_after_ms > 0 ? retry_after_ms : RETRY_AFTER_DEFAULT_MS;
    if (hold > RETRY_AFTER_MAX_MS)
        hold = RETRY_AFTER_MAX_MS;
    if (now_ms + hold > t->held_until_ms)
        t->held_until_ms = now_ms + hold;
}

int64_t kube_throttle_wake_ms(const struct kube_throttle *t, int64_t now_ms)
{
    return t->held_until_ms > now_ms ? t->held_until_ms : 0;
}
