#include <criterion/criterion.h>
#include <string.h>

#include "base/mem.h"
#include "s3/xml.h"

static const struct { const char *name, *text, *element, *found; } ROWS[] = {
    { "plain", "<a><Key>x</Key></a>", "Key", "x" },
    { "attributes and blanks", "<Key xmlns=\"u\" >x y</Key>", "Key", "x y" },
    { "one that begins alike", "<KeyCount>3</KeyCount><Key>x</Key>", "Key", "x" },
    { "entities", "<Key>a&amp;b&lt;c&gt;&quot;&apos;&#34;&#x27;</Key>", "Key", "a&b<c>\"'\"'" },
    { "an entity that is none", "<Key>a&b;&#0;&#999;</Key>", "Key", "a&b;&#0;&#999;" },
    { "empty", "<Key></Key>", "Key", "" },
    { "closed in itself", "<Key/><Other>x</Other>", "Key", "" },
    { "not there", "<a>Key</a>", "Key", NULL },
    { "not closed", "<Key>x", "Key", NULL },
    { "cut in its end", "<Key>x</Ke", "Key", NULL },
    { "cut in its beginning", "<Key", "Key", NULL },
    { "nothing", "", "Key", NULL },
    { "inner elements", "<Error><Code>X</Code></Error>", "Error", "<Code>X</Code>" },
};

Test(xml, the_text_of_an_element_is_found)
{
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        auto_free char *found = xml_text((struct xml){ ROWS[i].text, strlen(ROWS[i].text) }, ROWS[i].element);
        cr_expect((found == NULL) == (ROWS[i].found == NULL) && (found == NULL || strcmp(found, ROWS[i].found) == 0), "case %s: %s", ROWS[i].name,
                  found != NULL ? found : "nothing");
    }
}

/* Every beginning of an answer is read without looking behind its end: the copies are as long as what they hold. */
Test(xml, an_answer_that_is_cut_anywhere_is_read_to_its_end_and_no_farther)
{
    static const char whole[] = "<L><Contents><Key>a</Key></Contents><Contents><Key>b&amp;</Key></Contents><X/></L>";
    for (size_t n = 0; n <= sizeof(whole) - 1; n++) {
        auto_free char *cut = xcalloc(1, n > 0 ? n : 1);
        memcpy(cut, whole, n);
        struct xml at = { cut, n }, entry;
        size_t count = 0;
        while (xml_next(&at, "Contents", &entry)) {
            auto_free char *key = xml_text(entry, "Key");
            cr_expect(key != NULL && strcmp(key, count == 0 ? "a" : "b&") == 0);
            count++;
        }
        cr_expect(count <= 2 && (n < sizeof(whole) - 1 || count == 2));
    }
}
