#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "operator/authority.h"

#define NOW_MS 1800000000000ll
#define DAY_MS 86400000ll
#define LIFE_MS (90 * DAY_MS)
#define HOST "ringmaster-operator.ns.svc"

static struct authority_data made(int64_t now_ms)
{
    struct authority_data none = { .authority = { .pem = NULL } }, d;
    struct error e = ERROR_INIT;

    cr_assert_eq(authority_make(&none, AUTHORITY_BEGIN, HOST, now_ms, LIFE_MS, &d, &e), 0, "%s", e.text);
    return d;
}

Test(authority, what_is_next_follows_from_what_is_there_and_from_the_time)
{
    static const struct { const char *name, *host; int64_t after_ms; enum authority_step step; } ROWS[] = {
        { "fresh", HOST, 0, AUTHORITY_KEEP },
        { "two thirds are not over", HOST, 59 * DAY_MS, AUTHORITY_KEEP },
        { "two thirds are over", HOST, 61 * DAY_MS, AUTHORITY_ISSUE },
        { "expired", HOST, 91 * DAY_MS, AUTHORITY_ISSUE },
        { "reached by another name", "other.ns.svc", 0, AUTHORITY_ISSUE },
        { "the authority comes to its last third", HOST, AUTHORITY_LIFETIME_MS / 3 * 2 + DAY_MS, AUTHORITY_RENEW },
        { "the authority is expired", HOST, AUTHORITY_LIFETIME_MS + DAY_MS, AUTHORITY_RENEW },
    };
    struct authority_data d = made(NOW_MS);

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        char why[160];
        enum authority_step step = authority_next(&d, ROWS[i].host, NOW_MS + ROWS[i].after_ms, LIFE_MS, why);
        cr_expect_eq(step, ROWS[i].step, "case %s: %d, %s", ROWS[i].name, (int)step, why);
        cr_expect_eq(why[0] == '\0', step == AUTHORITY_KEEP, "case %s: %s", ROWS[i].name, why);
    }
    authority_data_release(&d);
}

Test(authority, what_is_not_whole_is_made_whole)
{
    struct authority_data good = made(NOW_MS), other = made(NOW_MS);
    char rubbish[] = "rubbish";
    const struct { const char *name; struct authority_data d; enum authority_step step; } ROWS[] = {
        { "nothing", { .authority = { .pem = NULL } }, AUTHORITY_BEGIN },
        { "no key of the authority", { .authority = { .pem = good.authority.pem }, .serving = good.serving }, AUTHORITY_BEGIN },
        { "an authority that cannot be read", { .authority = { .pem = rubbish, .key_pem = good.authority.key_pem } }, AUTHORITY_BEGIN },
        { "a key of another authority", { .authority = { .pem = good.authority.pem, .key_pem = other.authority.key_pem } }, AUTHORITY_BEGIN },
        { "no serving certificate", { .authority = good.authority }, AUTHORITY_ISSUE },
        { "one of another authority", { .authority = good.authority, .serving = other.serving }, AUTHORITY_ISSUE },
        { "one without its key", { .authority = good.authority, .serving = { .pem = good.serving.pem } }, AUTHORITY_ISSUE },
        { "one that cannot be read", { .authority = good.authority, .serving = { .pem = rubbish, .key_pem = good.serving.key_pem } }, AUTHORITY_ISSUE },
    };

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct authority_data whole = { .authority = { .pem = NULL } };
        struct error e = ERROR_INIT;
        char why[160];
        enum authority_step step = authority_next(&ROWS[i].d, HOST, NOW_MS, LIFE_MS, why);
        cr_expect_eq(step, ROWS[i].step, "case %s: %d, %s", ROWS[i].name, (int)step, why);
        cr_assert_eq(authority_make(&ROWS[i].d, step, HOST, NOW_MS, LIFE_MS, &whole, &e), 0, "case %s: %s", ROWS[i].name, e.text);
        cr_expect_eq(authority_next(&whole, HOST, NOW_MS, LIFE_MS, why), AUTHORITY_KEEP, "case %s: then %s", ROWS[i].name, why);
        if (step == AUTHORITY_ISSUE)
            cr_expect_str_eq(whole.authority.pem, good.authority.pem, "case %s", ROWS[i].name);
        authority_data_release(&whole);
    }
    authority_data_release(&good);
    authority_data_release(&other);
}

Test(authority, a_renewed_authority_is_trusted_by_those_who_know_the_former_one)
{
    int64_t late_ms = NOW_MS + AUTHORITY_LIFETIME_MS / 3 * 2 + DAY_MS, until_ms;
    struct authority_data first = made(NOW_MS), renewed;
    struct error e = ERROR_INIT;

    cr_assert_eq(authority_make(&first, AUTHORITY_RENEW, HOST, late_ms, LIFE_MS, &renewed, &e), 0, "%s", e.text);
    cr_expect_str_neq(first.authority.pem, renewed.authority.pem);
    cr_expect_eq(certificate_check(&renewed.serving, first.authority.pem, HOST, &until_ms, &e), 0, "%s", e.text);
    authority_data_release(&first);
    authority_data_release(&renewed);
}

Test(authority, a_secret_is_written_and_read_and_what_else_is_in_it_stays)
{
    struct authority_data d = made(NOW_MS), back;
    auto_json cJSON *existing = cJSON_Parse("{\"metadata\":{\"name\":\"s\",\"namespace\":\"n\",\"resourceVersion\":\"7\",\"labels\":{\"helm\":\"yes\"}},"
                                            "\"type\":\"Opaque\",\"data\":{\"tls.crt\":\"b2xk\"}}");
    auto_json cJSON *updated = authority_secret(&d, "n", "s", existing);
    auto_json cJSON *created = authority_secret(&d, "n", "s", NULL);

    cr_expect_str_eq(json_text(updated, "metadata.resourceVersion", ""), "7");
    cr_expect_str_eq(json_text(updated, "metadata.labels.helm", ""), "yes");
    cr_expect_null(json_at(updated, "data"));
    cr_expect_str_eq(json_text(created, "metadata.name", ""), "s");
    cr_expect_null(json_at(created, "metadata.resourceVersion"));
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(json_at(created, "stringData"), "ca.crt");
    cr_expect_str_eq(text->valuestring, d.authority.pem);

    authority_read(existing, &back);
    cr_expect_null(back.authority.pem);
    cr_expect_str_eq(back.serving.pem, "old");
    authority_data_release(&back);
    for (const char *const *hostile = (const char *const[]){ "{}", "{\"data\":[]}", "{\"data\":{\"ca.crt\":7,\"ca.key\":\"%%\"}}", NULL }; *hostile != NULL; hostile++) {
        auto_json cJSON *o = cJSON_Parse(*hostile);
        authority_read(o, &back);
        cr_expect(back.authority.pem == NULL && back.authority.key_pem == NULL, "case %s", *hostile);
        authority_data_release(&back);
    }
    authority_data_release(&d);
}
