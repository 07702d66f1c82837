#include "base/loop.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"

struct record { struct loop *loop; char text[64]; size_t len; struct loop_timer *timer; struct loop_source *a, *b; int left; };

static void note(struct record *r, char c)
{
    r->text[r->len++] = c;
}

static void timer_a(void *ctx) { note(ctx, 'a'); }
static void timer_b(void *ctx) { note(ctx, 'b'); }
static void timer_c(void *ctx) { note(ctx, 'c'); }
static void timer_stop(void *ctx) { loop_stop(((struct record *)ctx)->loop); }

static struct loop *new_loop(void)
{
    struct loop *l = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(loop_new(&l, &e), 0, "%s", e.text);
    return l;
}

Test(loop, timers_fire_in_the_order_of_their_time_and_once)
{
    struct error e = ERROR_INIT;
    struct loop *l = new_loop();
    struct record r = { .loop = l };
    struct loop_timer *a = loop_timer_new(l, timer_a, &r), *b = loop_timer_new(l, timer_b, &r),
                      *c = loop_timer_new(l, timer_c, &r), *end = loop_timer_new(l, timer_stop, &r);
    int64_t now = clock_mono_ms();

    loop_timer_at(c, now + 15);
    loop_timer_at(a, now + 40);
    loop_timer_at(a, now + 5); /* set again: the later time is forgotten */
    loop_timer_at(b, now + 10);
    loop_timer_at(end, now + 60);
    cr_expect(loop_timer_armed(a));
    cr_assert_eq(loop_run(l, &e), 0);
    cr_expect_str_eq(r.text, "abc");
    cr_expect_not(loop_timer_armed(a));
    loop_timer_free(a);
    loop_timer_free(b);
    loop_timer_free(c);
    loop_timer_free(end);
    loop_free(l);
}

Test(loop, a_heap_of_many_timers_stays_ordered)
{
    enum { N = 200 };
    struct error e = ERROR_INIT;
    struct loop *l = new_loop();
    struct record r = { .loop = l };
    struct loop_timer *t[N], *end = loop_timer_new(l, timer_stop, &r);
    unsigned seed = 7;
    int64_t now = clock_mono_ms();

    for (int i = 0; i < N; i++) {
        t[i] = loop_timer_new(l, timer_stop, &r); /* would stop too early if a cancelled one fired */
        seed = seed * 1103515245u + 12345u;
        loop_timer_at(t[i], now + 1 + (int64_t)(seed >> 16) % 20);
    }
    for (int i = 0; i < N; i++)
        loop_timer_cancel(t[(i * 37) % N]);
    loop_timer_at(end, now + 30);
    cr_assert_eq(loop_run(l, &e), 0);
    cr_expect_geq(clock_mono_ms(), now + 30);
    for (int i = 0; i < N; i++)
        loop_timer_free(t[i]);
    loop_timer_free(end);
    loop_free(l);
}

static void remove_both(void *ctx, int fd, unsigned events)
{
    struct record *r = ctx;

    (void)fd;
    (void)events;
    note(r, 'x');
    loop_remove(r->a);
    loop_remove(r->b);
    r->a = r->b = NULL;
    loop_stop(r->loop);
}

Test(loop, a_source_removed_by_another_callback_of_the_same_turn_is_not_called)
{
    struct error e = ERROR_INIT;
    struct loop *l = new_loop();
    struct record r = { .loop = l };
    int one[2], two[2];

    cr_assert_eq(pipe(one), 0);
    cr_assert_eq(pipe(two), 0);
    cr_assert_eq(loop_add(l, one[0], LOOP_READ, remove_both, &r, &r.a, &e), 0);
    cr_assert_eq(loop_add(l, two[0], LOOP_READ, remove_both, &r, &r.b, &e), 0);
    cr_assert_eq(write(one[1], "1", 1), 1);
    cr_assert_eq(write(two[1], "1", 1), 1);
    cr_assert_eq(loop_run(l, &e), 0);
    cr_expect_str_eq(r.text, "x");
    loop_free(l);
}

static void posted(void *ctx)
{
    struct record *r = ctx;

    if (--r->left == 0)
        loop_stop(r->loop);
}

static void *poster(void *ctx)
{
    struct record *r = ctx;

    for (int i = 0; i < 1000; i++)
        loop_post(r->loop, posted, r);
    return NULL;
}

Test(loop, posts_from_other_threads_all_arrive)
{
    struct error e = ERROR_INIT;
    struct loop *l = new_loop();
    struct record r = { .loop = l, .left = 2000 };
    pthread_t one, two;

    cr_assert_eq(pthread_create(&one, NULL, poster, &r), 0);
    cr_assert_eq(pthread_create(&two, NULL, poster, &r), 0);
    cr_assert_eq(loop_run(l, &e), 0);
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    cr_expect_eq(r.left, 0);
    loop_free(l);
}

static void on_signal(void *ctx, int number)
{
    struct record *r = ctx;

    cr_expect_eq(number, SIGUSR1);
    note(r, 's');
    loop_stop(r->loop);
}

Test(loop, signals_arrive_as_calls)
{
    struct error e = ERROR_INIT;
    struct loop *l = new_loop();
    struct record r = { .loop = l };

    cr_assert_eq(loop_signals(l, (const int[]){ SIGUSR1 }, 1, on_signal, &r, &e), 0);
    cr_assert_eq(kill(getpid(), SIGUSR1), 0);
    cr_assert_eq(loop_run(l, &e), 0);
    cr_expect_str_eq(r.text, "s");
    loop_free(l);
}
