#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/members.h"

static struct training_job JOB = { .name = (char *)"mnist",
                                   .spec.roles = { [ROLE_CHIEF] = { .present = true, .replicas = 1 }, [ROLE_WORKER] = { .present = true, .replicas = 3 },
                                                   [ROLE_EVALUATOR] = { .present = true, .replicas = 1 } } };

Test(members, who_is_asked_for)
{
    static const struct { const char *what, *words[3]; size_t count; const char *role; int64_t rank; const char *names, *wrong; } ROWS[] = {
        { "all", { NULL }, 0, NULL, -1, "chief-0 worker-0 worker-1 worker-2 evaluator-0 ", NULL },
        { "words in their order", { "worker-2", "chief-0" }, 2, NULL, -1, "worker-2 chief-0 ", NULL },
        { "twice is once", { "worker-2", "worker-2" }, 2, NULL, -1, "worker-2 ", NULL },
        { "a role", { NULL }, 0, "Worker", -1, "worker-0 worker-1 worker-2 ", NULL },
        { "a rank", { NULL }, 0, NULL, 0, "chief-0 ", NULL },
        { "another rank", { NULL }, 0, NULL, 3, "worker-2 ", NULL },
        { "a role without ranks", { NULL }, 0, "evaluator", -1, "evaluator-0 ", NULL },
        { "no such member", { "worker-3" }, 1, NULL, -1, NULL, "no member \"worker-3\"; did you mean" },
        { "no such rank", { NULL }, 0, NULL, 4, NULL, "has no rank 4; its ring has the ranks 0 to 3" },
        { "no such role", { NULL }, 0, "ps", -1, NULL, "has no role \"ps\"" },
        { "a rank of another role", { NULL }, 0, "chief", 2, NULL, "has no rank 2 of role chief" },
        { "both ways", { "worker-0" }, 1, "worker", -1, NULL, "name members, or choose them by rank and role" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct members_wish wish = { .words = (char *const *)ROWS[i].words, .count = ROWS[i].count, .role = ROWS[i].role, .rank = ROWS[i].rank };
        struct members m = { .names = NULL };
        struct error e = ERROR_INIT;
        char names[400] = "";
        int rc = members_choose(&JOB, &wish, &m, &e);
        cr_expect_eq(rc, ROWS[i].wrong ? -1 : 0, "case %s: %s", ROWS[i].what, e.text);
        for (size_t k = 0; k < m.count; k++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", m.names[k]);
        cr_expect(!ROWS[i].names || strcmp(names, ROWS[i].names) == 0, "case %s: %s", ROWS[i].what, names);
        cr_expect(!ROWS[i].wrong || strstr(e.text, ROWS[i].wrong), "case %s: %s", ROWS[i].what, e.text);
        cr_expect_eq(m.all, ROWS[i].count == 0 && !ROWS[i].role && ROWS[i].rank < 0, "case %s", ROWS[i].what);
        members_release(&m);
    }
}
