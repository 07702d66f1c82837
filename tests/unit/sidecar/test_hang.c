/* When is it a hang, and whose? On virtual time: a line of a script is what one rank's sidecar tells, or time that passes. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sidecar/supervise/hang.h"

#define RANKS 3
#define QUIET_S 100
#define FIRST_S 300

struct stage {
    struct hang_signs ranks[RANKS];
    struct progress_view told[RANKS];
    int32_t lacking;
    int64_t now_ms;
};

static void begin(struct stage *s)
{
    memset(s, 0, sizeof *s);
    s->lacking = -1;
    s->now_ms = 1000000;
    for (int i = 0; i < RANKS; i++) {
        hang_begin(&s->ranks[i], s->now_ms);
        s->ranks[i].judged = true;
        s->told[i] = (struct progress_view){ .step = -1, .operations = 7 }; /* of a round before */
    }
}

/* Words, separated by blanks: r N (all that follows is about rank N; "r *" about all), attach, step N, first (its first step came), op, report, cpu P, wrote, traced, untraced,
 * done (its process is over), tell (its sidecar tells), wait S, lacks N, committed, slept S. */
static void run(struct stage *s, const char *script)
{
    char copy[512], *rest = NULL;
    int from = 0, to = RANKS;

    (void)snprintf(copy, sizeof copy, "%s", script);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        static const char *const with_number[] = { "r", "step", "cpu", "wait", "lacks", "slept" };
        const char *number = "";
        for (size_t i = 0; i < COUNT(with_number); i++) {
            if (strcmp(word, with_number[i]) == 0)
                number = strtok_r(NULL, " ", &rest);
        }
        int n = atoi(number);
        if (strcmp(word, "r") == 0) {
            from = number[0] == '*' ? 0 : n;
            to = number[0] == '*' ? RANKS : n + 1;
        }
        if (strcmp(word, "wait") == 0)
            s->now_ms += n * 1000;
        if (strcmp(word, "lacks") == 0)
            s->lacking = n;
        for (int i = from; i < to; i++) {
            struct progress_view *p = &s->told[i];
            if (strcmp(word, "attach") == 0)
                p->attached = true;
            else if (strcmp(word, "step") == 0)
                p->step = n;
            else if (strcmp(word, "first") == 0)
                p->first_step_ms = 1;
            else if (strcmp(word, "op") == 0)
                p->operations++;
            else if (strcmp(word, "report") == 0)
                p->reports++;
            else if (strcmp(word, "cpu") == 0)
                p->cpu_percent = n;
            else if (strcmp(word, "wrote") == 0)
                p->written++;
            else if (strcmp(word, "traced") == 0 || strcmp(word, "untraced") == 0)
                p->traced = word[0] == 't';
            else if (strcmp(word, "done") == 0)
                s->ranks[i].judged = false;
            else if (strcmp(word, "tell") == 0)
                hang_note(&s->ranks[i], p, s->now_ms);
            else if (strcmp(word, "committed") == 0)
                hang_trained(&s->ranks[i], s->now_ms);
            else if (strcmp(word, "slept") == 0)
                hang_excuse(&s->ranks[i], n * 1000);
        }
    }
}

#define ATTACHED "r * attach tell "
#define TRAINING ATTACHED "r * step 1 first tell wait 1 step 2 op tell "

static const struct { const char *name, *script; bool strict; enum hang_verdict verdict; int32_t rank; bool started, busy; } CASES[] = {
    { "nobody tells anything, not for long", ATTACHED "wait 299", false, HANG_NONE, -1, false, false },
    { "nothing at all until the first step was due", ATTACHED "wait 301", false, HANG_FOUND, 0, false, false },
    { "a long compilation uses CPU", ATTACHED "cpu 90 wait 200 tell wait 140 tell wait 10", false, HANG_NONE, -1, false, false },
    { "a compilation that never ends", ATTACHED "cpu 90 wait 300 tell wait 300 tell wait 310 tell", false, HANG_FOUND, 0, false, true },
    { "a slow import writes warnings now and then", ATTACHED "wait 200 wrote tell wait 140", false, HANG_NONE, -1, false, false },
    { "a few operations at the start are not the first step", ATTACHED "op tell wait 1 op tell wait 150", false, HANG_NONE, -1, false, false },
    { "operations again and again are", ATTACHED "op tell op tell op tell wait 101", false, HANG_FOUND, 0, true, false },
    { "a step that a checkpoint is resumed at is none", ATTACHED "step 500 tell wait 150", false, HANG_NONE, -1, false, false },
    { "what the process before told last is none", ATTACHED "step -1 tell wait 301", false, HANG_FOUND, 0, false, false },

    { "training", TRAINING "wait 99 step 3 tell wait 99", false, HANG_NONE, -1, true, false },
    { "all stand still", TRAINING "wait 101", false, HANG_FOUND, 0, true, false },
    { "one is behind", TRAINING "r 0 step 3 tell r 2 step 3 tell wait 102", false, HANG_FOUND, 1, true, false },
    { "a collective says who is missing", TRAINING "lacks 2 wait 101", false, HANG_FOUND, 2, true, false },
    { "who is missing has ended: then it is somebody else", TRAINING "r 2 done r * lacks 2 wait 101", false, HANG_FOUND, 0, true, false },
    { "an evaluation on one rank", TRAINING "lacks 0 wait 60 r 0 cpu 99 tell wait 60 tell wait 60 tell wait 40", false, HANG_NONE, -1, true, false },
    { "an evaluation that never ends", TRAINING "r 0 cpu 99 wait 100 tell wait 100 tell wait 101 tell", false, HANG_FOUND, 0, true, true },
    { "an evaluation that reports", TRAINING "wait 90 r 0 report tell wait 20", false, HANG_FOUND, 1, true, false },
    { "an evaluation on all that reports", TRAINING "wait 90 report tell wait 90 report tell wait 90", false, HANG_NONE, -1, true, false },
    { "idle threads that tick are no life", TRAINING "cpu 2 wait 50 tell wait 51 tell", false, HANG_FOUND, 0, true, false },
    { "a debugger holds one rank", TRAINING "r 1 traced tell wait 1000", false, HANG_NONE, -1, false, false },
    { "it has let go", TRAINING "r 1 traced tell wait 1000 untraced tell wait 101", false, HANG_FOUND, 0, true, false },
    { "a checkpoint is being saved", TRAINING "wait 90 r * committed wait 90", false, HANG_NONE, -1, true, false },
    { "the machine slept", TRAINING "wait 5000 slept 5000 wait 50", false, HANG_NONE, -1, true, false },
    { "all have ended", TRAINING "done wait 1000", false, HANG_NONE, -1, false, false },
    { "a rank that reports nothing beside one that does", ATTACHED "r 0 step 1 first tell wait 60 step 2 tell wait 60 step 3 tell wait 60 step 4 tell wait 60 step 5 tell wait 60 step 6 tell wait 60 step 7 tell",
      false, HANG_NONE, -1, true, false },

    { "an unknown program is told of", "r * tell wait 301", false, HANG_SUSPECTED, 0, false, false },
    { "an unknown program that computes is let alone for long", "r * cpu 100 tell wait 200 tell wait 140 tell", false, HANG_NONE, -1, false, false },
    { "an unknown program, and the manifest sets a limit", "r * tell wait 301", true, HANG_FOUND, 0, false, false },
};

Test(hang, layers_decide_together)
{
    struct hang_rule rule = { .quiet_ms = QUIET_S * 1000, .first_ms = FIRST_S * 1000 };

    for (size_t i = 0; i < COUNT(CASES); i++) {
        struct stage s;
        begin(&s);
        run(&s, CASES[i].script);
        rule.strict = CASES[i].strict;
        struct hang_found f = hang_look(s.ranks, RANKS, s.lacking, &rule, s.now_ms);
        cr_expect(f.verdict == CASES[i].verdict, "case %s: verdict %d", CASES[i].name, f.verdict);
        cr_expect(f.rank == CASES[i].rank, "case %s: rank %d", CASES[i].name, (int)f.rank);
        cr_expect(f.verdict == HANG_NONE || f.started == CASES[i].started, "case %s: started", CASES[i].name);
        cr_expect(f.verdict == HANG_NONE || f.busy == CASES[i].busy, "case %s: busy", CASES[i].name);
    }
}

Test(hang, zero_is_never)
{
    struct hang_rule rule = { .quiet_ms = 0, .first_ms = 1000, .strict = true };
    struct stage s;

    begin(&s);
    run(&s, TRAINING "wait 100000");
    cr_expect(hang_look(s.ranks, RANKS, -1, &rule, s.now_ms).verdict == HANG_NONE);
    cr_expect(hang_interval_ms(&rule) == 0);
}

Test(hang, a_first_step_that_may_take_less_than_others_may_take_as_long)
{
    struct hang_rule rule = { .quiet_ms = QUIET_S * 1000, .first_ms = 1000 };
    struct stage s;

    begin(&s);
    run(&s, ATTACHED "wait 99");
    cr_expect(hang_look(s.ranks, RANKS, -1, &rule, s.now_ms).verdict == HANG_NONE);
    run(&s, "wait 2");
    cr_expect(hang_look(s.ranks, RANKS, -1, &rule, s.now_ms).verdict == HANG_FOUND);
}

Test(hang, looks_are_a_tenth_of_the_limit_apart)
{
    static const struct { int64_t quiet_ms, interval_ms; } rows[] = {
        { 1, 100 }, { 1000, 100 }, { 5000, 500 }, { 60000, 6000 }, { 1800000, 10000 },
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct hang_rule rule = { .quiet_ms = rows[i].quiet_ms, .first_ms = 1800000 };
        cr_expect(hang_interval_ms(&rule) == rows[i].interval_ms, "case %zu", i);
    }
}
