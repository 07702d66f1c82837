#include <criterion/criterion.h>

#include "base/mem.h"
#include "operator/version.h"

Test(version, native_sidecars_are_there_from_1_29_on)
{
    static const struct { const char *text; bool has; } ROWS[] = {
        { "{\"major\":\"1\",\"minor\":\"34\"}", true },  { "{\"major\":\"1\",\"minor\":\"29\"}", true },  { "{\"major\":\"1\",\"minor\":\"29+\"}", true },
        { "{\"major\":\"1\",\"minor\":\"28\"}", false }, { "{\"major\":\"1\",\"minor\":\"27+\"}", false }, { "{\"major\":\"2\",\"minor\":\"0\"}", true },
        { "{}", true },                                  { "{\"major\":1,\"minor\":28}", true },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_json cJSON *o = cJSON_Parse(ROWS[i].text);
        cr_expect_eq(version_has_native_sidecars(o), ROWS[i].has, "case %s", ROWS[i].text);
    }
}
