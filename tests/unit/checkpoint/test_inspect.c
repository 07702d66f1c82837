#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/inspect.h"

#define NONCE(c) c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c c

static struct inspection ITEMS[] = {
    { .generation = { { 3, 50 }, NONCE("0") }, .state = INSPECT_PARTIAL, .visible = true },
    { .generation = { { 3, 40 }, NONCE("1") }, .state = INSPECT_COMMITTED, .visible = true, .newest = true },
    { .generation = { { 2, 30 }, NONCE("2") }, .state = INSPECT_COMMITTED },
    { .generation = { { 1, 30 }, NONCE("3") }, .state = INSPECT_COMMITTED, .visible = true },
    { .generation = { { 1, 30 }, NONCE("4") }, .state = INSPECT_ABORTED, .visible = true },
    { .generation = { { 1, 20 }, NONCE("5") }, .state = INSPECT_RETIRED, .visible = true },
    { .generation = { { 1, 20 }, NONCE("6") }, .state = INSPECT_DAMAGED, .visible = true },
};

static const struct { const char *which; int found; const char *says; } ROWS[] = {
    { "latest", 1, NULL }, { "40", 1, NULL }, { "30", 3, NULL }, { "50", 0, NULL }, { "20", 5, NULL },
    { "s000000000030-e0000000000000002-22222222222222222222222222222222", 2, NULL },
    { "31", -1, "there is no step \"31\"; there are 50, 40, 30" }, { "-1", -1, "there is no step" }, { "", -1, "there is no step" },
    { "s30", -1, "there is no step" },
};

Test(inspect, a_step_is_found_by_number_by_directory_and_as_the_latest)
{
    struct inspections all = { .items = ITEMS, .count = COUNT(ITEMS) };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error e = ERROR_INIT;
        const struct inspection *found = NULL;
        int result = inspect_find(&all, ROWS[i].which, &found, &e);
        cr_expect((result == 0) == (ROWS[i].found >= 0), "case %s", ROWS[i].which);
        cr_expect(result != 0 || found == &ITEMS[ROWS[i].found], "case %s: found %td", ROWS[i].which, found - ITEMS);
        cr_expect(result == 0 || (e.kind == ERROR_NOT_FOUND && strstr(e.text, ROWS[i].says) != NULL), "case %s: %s", ROWS[i].which, e.text);
    }
}

Test(inspect, where_nothing_is_committed_there_is_no_latest)
{
    struct inspections some = { .items = ITEMS, .count = 1 }, none = { .items = NULL };
    const struct inspection *found;
    struct error e = ERROR_INIT;
    cr_expect(inspect_find(&some, "latest", &found, &e) != 0 && strstr(e.text, "no step is committed here; there are 50") != NULL, "%s", e.text);
    cr_expect(inspect_find(&none, "7", &found, &e) != 0 && strstr(e.text, "there is none at all") != NULL, "%s", e.text);
}
