/*
 * report.html is a page of its own, cli/report.html, taken into the program with .incbin; the report's JSON is put in the
 * place of @REPORT@. The page computes everything else from it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/summary.h"

#define PLACE "@REPORT@"
#define HTML_MAX (64u << 20)

__asm__(".section .rodata\n"
        ".global report_page\n"
        ".hidden report_page\n"
        "report_page:\n"
        ".incbin \"cli/report.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char report_page[];

/* Inside <script> only "</script" and "<!--" could end the text: "<" is written as an escape, which JSON allows. */
static void add_json(struct buf *out, const char *json)
{
    for (const char *p = json; *p;) {
        size_t plain = strcspn(p, "<");
        buf_add_bytes(out, p, plain);
        p += plain;
        if (*p == '<') {
            buf_add(out, "\\u003c");
            p++;
        }
    }
}

char *report_html_build(const cJSON *report)
{
    auto_free char *json = json_print(report, false);
    const char *place = strstr(report_page, PLACE);
    auto_buf struct buf out = BUF_INIT(HTML_MAX);
    buf_add_bytes(&out, report_page, (size_t)(place - report_page));
    add_json(&out, json);
    buf_add(&out, place + strlen(PLACE));
    return buf_ok(&out) ? buf_take(&out) : NULL;
}
