#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kube/object.h"

static cJSON *parsed(const char *text)
{
    cJSON *tree = NULL;
    struct error e = ERROR_INIT;

    cr_assert_eq(json_parse(text, strlen(text), &tree, &e), 0, "%s", e.text);
    return tree;
}

Test(object, readings_of_strange_objects_are_empty_not_wrong)
{
    static const char *const STRANGE[] = { "{}", "[]", "7", "\"text\"", "null", "{\"metadata\":7}", "{\"metadata\":{\"name\":{},\"uid\":[]}}",
        "{\"metadata\":{\"labels\":[1],\"annotations\":\"x\",\"ownerReferences\":{\"a\":1},\"finalizers\":\"f\"},\"status\":{\"conditions\":7}}" };

    for (size_t i = 0; i < COUNT(STRANGE); i++) {
        auto_json cJSON *o = parsed(STRANGE[i]);
        struct kube_key key;
        cr_expect_str_eq(kube_name(o), "", "case %zu", i);
        cr_expect_str_eq(kube_uid(o), "", "case %zu", i);
        cr_expect_null(kube_label(o, "a"), "case %zu", i);
        cr_expect_null(kube_annotation(o, "a"), "case %zu", i);
        cr_expect_str_eq(kube_controller_uid(o), "", "case %zu", i);
        cr_expect_not(kube_has_finalizer(o, "f"), "case %zu", i);
        cr_expect_null(kube_condition(o, "Ready"), "case %zu", i);
        cr_expect_not(kube_object_key(o, &key), "case %zu", i);
    }
}

Test(object, readings)
{
    auto_json cJSON *o = parsed("{\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"labels\":{\"ringmaster.dev/job-name\":\"j\"},"
                                "\"deletionTimestamp\":\"2026-01-01T00:00:00Z\",\"ownerReferences\":[{\"uid\":\"x\"},"
                                "{\"uid\":\"y\",\"controller\":true}]},\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}");
    struct kube_key key;

    cr_assert(kube_object_key(o, &key));
    cr_expect_str_eq(key.ns, "n");
    cr_expect_str_eq(key.name, "a");
    cr_expect_str_eq(kube_label(o, "ringmaster.dev/job-name"), "j", "a name with dots is a name, not a path");
    cr_expect_str_eq(kube_controller_uid(o), "y");
    cr_expect(kube_deleting(o));
    cr_expect_str_eq(json_text(kube_condition(o, "Ready"), "status", ""), "True");
}

static const struct { const char *a, *b; bool known; int order; } VERSIONS[] = {
    { "5", "6", true, -1 }, { "6", "5", true, 1 }, { "7", "7", true, 0 }, { "9", "10", true, -1 }, { "100", "99", true, 1 },
    { "18446744073709551616", "18446744073709551617", true, -1 },
    { "", "1", false, 0 }, { "1", "", false, 0 }, { "0", "1", false, 0 }, { "01", "1", false, 0 }, { "1a", "2", false, 0 }, { "-1", "2", false, 0 },
};

Test(object, versions_have_an_order_where_they_are_numbers)
{
    for (size_t i = 0; i < COUNT(VERSIONS); i++) {
        int order = 0;
        bool known = kube_version_order(VERSIONS[i].a, VERSIONS[i].b, &order);
        cr_expect(known == VERSIONS[i].known && (order > 0) - (order < 0) == VERSIONS[i].order, "case %s %s: %d", VERSIONS[i].a, VERSIONS[i].b, order);
    }
}

Test(object, keys_that_do_not_fit_are_refused)
{
    struct kube_key key;
    char ns[KUBE_NS_MAX + 1], name[KUBE_NAME_MAX + 1];

    memset(ns, 'n', sizeof ns);
    memset(name, 'a', sizeof name);
    ns[KUBE_NS_MAX] = name[KUBE_NAME_MAX] = '\0';
    cr_expect_not(kube_key_set(&key, ns, "a"));
    cr_expect_not(kube_key_set(&key, "n", name));
    cr_expect_not(kube_key_set(&key, "n", ""));
    cr_expect(kube_key_set(&key, NULL, "a"));
    cr_expect(kube_key_set(&key, ns + 1, name + 1));
}

static const struct { const char *name, *object; bool present; const char *patch; } FINALIZERS[] = {
    { "added to others", "{\"metadata\":{\"finalizers\":[\"a\"]}}", true,
      "[{\"op\":\"test\",\"path\":\"/metadata/finalizers\",\"value\":[\"a\"]},{\"op\":\"add\",\"path\":\"/metadata/finalizers/-\",\"value\":\"f\"}]" },
    { "the first", "{\"metadata\":{\"uid\":\"u\",\"resourceVersion\":\"5\"}}", true,
      "[{\"op\":\"test\",\"path\":\"/metadata/uid\",\"value\":\"u\"},{\"op\":\"test\",\"path\":\"/metadata/resourceVersion\",\"value\":\"5\"},"
      "{\"op\":\"add\",\"path\":\"/metadata/finalizers\",\"value\":[\"f\"]}]" },
    { "removed from others", "{\"metadata\":{\"finalizers\":[\"a\",\"f\",\"b\"]}}", false,
      "[{\"op\":\"test\",\"path\":\"/metadata/finalizers\",\"value\":[\"a\",\"f\",\"b\"]},"
      "{\"op\":\"replace\",\"path\":\"/metadata/finalizers\",\"value\":[\"a\",\"b\"]}]" },
    { "there already", "{\"metadata\":{\"finalizers\":[\"f\"]}}", true, NULL },
    { "not there anyway", "{\"metadata\":{}}", false, NULL },
};

Test(object, finalizer_patches_leave_others_alone)
{
    for (size_t i = 0; i < COUNT(FINALIZERS); i++) {
        auto_json cJSON *o = parsed(FINALIZERS[i].object);
        auto_json cJSON *patch = kube_finalizer_patch(o, "f", FINALIZERS[i].present);
        auto_free char *text = patch != NULL ? json_print(patch, false) : NULL;
        cr_expect((text == NULL) == (FINALIZERS[i].patch == NULL) && (text == NULL || strcmp(text, FINALIZERS[i].patch) == 0), "case %s: %s",
                  FINALIZERS[i].name, text);
    }
}
