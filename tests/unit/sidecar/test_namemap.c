#include <criterion/criterion.h>
#include <stdio.h>

#include "sidecar/ring/namemap.h"

Test(namemap, finds_what_was_put_and_nothing_else)
{
    struct namemap m = { 0 };
    int a, b;

    cr_expect(namemap_get(&m, "x") == NULL && namemap_remove(&m, "x") == NULL);
    namemap_put(&m, "x", &a);
    namemap_put(&m, "", &b);
    cr_expect(namemap_get(&m, "x") == &a && namemap_get(&m, "") == &b && namemap_get(&m, "y") == NULL && m.count == 2);
    namemap_put(&m, "x", &b);
    cr_expect(namemap_get(&m, "x") == &b && m.count == 2);
    cr_expect(namemap_remove(&m, "x") == &b && namemap_get(&m, "x") == NULL && m.count == 1);
    namemap_release(&m);
    cr_expect(namemap_get(&m, "") == NULL);
}

/* The engine's use: names come and go for ever. The table must neither grow without bound nor fill up with traces of the dead. */
Test(namemap, coming_and_going_does_not_wear_it_out)
{
    struct namemap m = { 0 };
    static int values[500];
    char name[32];

    for (int step = 0; step < 200000; step++) {
        int i = step % 500;
        (void)snprintf(name, sizeof name, "tensor/%d", step - 500);
        if (step >= 500)
            cr_assert(namemap_remove(&m, name) == &values[i], "step %d", step);
        (void)snprintf(name, sizeof name, "tensor/%d", step);
        namemap_put(&m, name, &values[i]);
    }
    cr_expect(m.count == 500 && m.capacity <= 4096, "%zu entries in %zu slots", m.count, m.capacity);
    size_t at = 0, seen = 0;
    while (namemap_each(&m, &at) != NULL)
        seen++;
    cr_expect(seen == 500);
    namemap_release(&m);
}
