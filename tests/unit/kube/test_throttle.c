#include <criterion/criterion.h>

#include "kube/throttle.h"

Test(throttle, lets_the_whole_window_through_and_no_more)
{
    struct kube_throttle t;

    kube_throttle_init(&t, 4);
    for (int i = 0; i < 4; i++) {
        cr_assert(kube_throttle_may_send(&t, 0));
        kube_throttle_sent(&t);
    }
    cr_expect_not(kube_throttle_may_send(&t, 0));
    kube_throttle_answered(&t, false, 0, 1);
    cr_expect(kube_throttle_may_send(&t, 1));
}

Test(throttle, a_burst_of_refusals_halves_once_and_holds_for_as_long_as_the_server_asks)
{
    struct kube_throttle t;

    kube_throttle_init(&t, 16);
    for (int i = 0; i < 8; i++)
        kube_throttle_sent(&t);
    for (int i = 0; i < 8; i++)
        kube_throttle_answered(&t, true, 3000, 1000 + i);
    cr_expect_eq(t.window, 8u);
    cr_expect_not(kube_throttle_may_send(&t, 3900));
    cr_expect_eq(kube_throttle_wake_ms(&t, 2000), 4007);
    cr_expect(kube_throttle_may_send(&t, 4007));
    cr_expect_eq(kube_throttle_wake_ms(&t, 4007), 0);
    kube_throttle_sent(&t);
    kube_throttle_answered(&t, true, 0, 5000);
    cr_expect_eq(t.window, 4u, "the next second's refusal halves again");
    cr_expect_eq(kube_throttle_wake_ms(&t, 5000), 6000, "a second when the server does not say");
}

Test(throttle, grows_by_one_for_each_full_window_of_answers_up_to_the_ceiling)
{
    struct kube_throttle t;

    kube_throttle_init(&t, 4);
    kube_throttle_answered(&t, true, 1, 0);
    kube_throttle_answered(&t, true, 1, 2000);
    kube_throttle_answered(&t, true, 1, 4000);
    cr_assert_eq(t.window, 1u, "never below one");
    uint32_t after[] = { 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4 };
    for (size_t i = 0; i < sizeof after / sizeof after[0]; i++) {
        kube_throttle_sent(&t);
        kube_throttle_answered(&t, false, 0, 9000);
        cr_expect_eq(t.window, after[i], "answer %zu: %u", i, t.window);
    }
}

Test(throttle, does_not_wait_for_a_day)
{
    struct kube_throttle t;

    kube_throttle_init(&t, 2);
    kube_throttle_answered(&t, true, 86400000, 0);
    cr_expect_leq(kube_throttle_wake_ms(&t, 0), 60000);
}
