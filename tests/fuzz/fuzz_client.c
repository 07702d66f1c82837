/* What a training program reports: refused with a reason and without a trace, or kept and given again as what it was. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client/c/src/report.h"
#include "client/c/src/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    auto_free char *json = xstrndup((const char *)data, size);
    struct report r = { 0 }, before, again = { 0 };
    char text[REPORT_TEXT_MAX], second[REPORT_TEXT_MAX];

    if (report_merge(&r, "{\"step\":1,\"metrics\":{\"kept\":2}}") != 0)
        abort();
    before = r;
    if (report_merge(&r, json) < 0) {
        if (strncmp(text_last(), "report: ", 8) != 0 || memcmp(&r, &before, sizeof r) != 0)
            abort();
        return 0;
    }
    size_t n = report_take(&r, text);
    if (n == 0 || n >= sizeof text || strlen(text) != n || report_merge(&again, text) != 0)
        abort();
    if (report_take(&again, second) != n || memcmp(text, second, n) != 0)
        abort();
    return 0;
}
