#include <criterion/criterion.h>
#include <string.h>

#include "base/certificate.h"
#include "base/mem.h"

#define NOW_MS 1800000000000ll
#define DAY_MS 86400000ll

static struct certificate authority(const char *key_pem)
{
    struct certificate c = { .pem = NULL };
    struct error e = ERROR_INIT;

    cr_assert_eq(certificate_make_authority("test", key_pem, NOW_MS, 100 * DAY_MS, &c, &e), 0, "%s", e.text);
    return c;
}

Test(certificate, fits_the_host_that_it_was_issued_for)
{
    static const struct { const char *issued, *asked; bool fits; } ROWS[] = {
        { "operator.ns.svc", "operator.ns.svc", true },
        { "operator.ns.svc", "OPERATOR.ns.svc", true },
        { "operator.ns.svc", "operator.other.svc", false },
        { "operator.ns.svc", "10.0.0.1", false },
        { "10.0.0.1", "10.0.0.1", true },
        { "10.0.0.1", "10.0.0.2", false },
        { "::1", "::1", true },
        { "a.b", "x.a.b", false },
    };
    struct certificate ca = authority(NULL);

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct certificate c = { .pem = NULL };
        struct error e = ERROR_INIT;
        int64_t until_ms = 0;
        cr_assert_eq(certificate_issue(&ca, ROWS[i].issued, NOW_MS, 10 * DAY_MS, &c, &e), 0, "%s", e.text);
        bool fits = certificate_check(&c, ca.pem, ROWS[i].asked, &until_ms, &e) == 0;
        cr_expect_eq(fits, ROWS[i].fits, "case %s for %s: %s", ROWS[i].issued, ROWS[i].asked, e.text);
        if (fits)
            cr_expect_eq(until_ms, NOW_MS + 10 * DAY_MS);
        certificate_release(&c);
    }
    certificate_release(&ca);
}

Test(certificate, names_that_openssl_would_read_otherwise_are_refused)
{
    static const char *const ROWS[] = { "", "a,DNS:b", "a b", "a\nb", "*.svc", "a/b", "host:80" };
    struct certificate ca = authority(NULL);

    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct certificate c = { .pem = NULL };
        struct error e = ERROR_INIT;
        cr_expect_eq(certificate_issue(&ca, ROWS[i], NOW_MS, DAY_MS, &c, &e), -1, "case \"%s\"", ROWS[i]);
        cr_expect_eq(e.kind, ERROR_INVALID);
        cr_expect_null(c.pem);
    }
    certificate_release(&ca);
}

Test(certificate, an_authority_renewed_with_its_key_vouches_for_what_it_signed_before_and_the_other_way_round)
{
    struct certificate first = authority(NULL), renewed = authority(first.key_pem), other = authority(NULL), early = { .pem = NULL }, late = { .pem = NULL };
    struct error e = ERROR_INIT;
    int64_t until_ms;

    cr_assert_str_neq(first.pem, renewed.pem);
    cr_assert_eq(certificate_issue(&first, "h", NOW_MS, DAY_MS, &early, &e), 0);
    cr_assert_eq(certificate_issue(&renewed, "h", NOW_MS, DAY_MS, &late, &e), 0);
    cr_expect_eq(certificate_check(&early, renewed.pem, "h", &until_ms, &e), 0, "%s", e.text);
    cr_expect_eq(certificate_check(&late, first.pem, "h", &until_ms, &e), 0, "%s", e.text);
    cr_expect_eq(certificate_check(&late, other.pem, "h", &until_ms, &e), -1);
    cr_expect_str_eq(e.text, "the certificate was not issued by this authority");
    certificate_release(&first);
    certificate_release(&renewed);
    certificate_release(&other);
    certificate_release(&early);
    certificate_release(&late);
}

Test(certificate, what_does_not_belong_together_is_told)
{
    struct certificate ca = authority(NULL), other = authority(NULL), leaf = { .pem = NULL };
    struct error e = ERROR_INIT;
    int64_t until_ms;

    cr_assert_eq(certificate_issue(&ca, "h", NOW_MS, DAY_MS, &leaf, &e), 0);
    cr_expect_eq(certificate_check_authority(&ca, &until_ms, &e), 0, "%s", e.text);
    cr_expect_eq(until_ms, NOW_MS + 100 * DAY_MS);
    const struct { const char *name; struct certificate c; const char *words; } ROWS[] = {
        { "a leaf is no authority", leaf, "not an authority" },
        { "the key of another", { .pem = ca.pem, .key_pem = other.key_pem }, "do not belong together" },
        { "no key", { .pem = ca.pem, .key_pem = NULL }, "no private key" },
        { "no certificate", { .pem = NULL, .key_pem = ca.key_pem }, "no certificate" },
        { "key for certificate", { .pem = ca.key_pem, .key_pem = ca.key_pem }, "no certificate" },
        { "rubbish", { .pem = (char *)"-----BEGIN CERTIFICATE-----\nAAAA\n", .key_pem = ca.key_pem }, "no certificate" },
    };
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct error why = ERROR_INIT;
        cr_expect_eq(certificate_check_authority(&ROWS[i].c, &until_ms, &why), -1, "case %s", ROWS[i].name);
        cr_expect(strstr(why.text, ROWS[i].words) != NULL, "case %s: %s", ROWS[i].name, why.text);
    }
    certificate_release(&ca);
    certificate_release(&other);
    certificate_release(&leaf);
}
