/* Reports and commands from the channel: whatever comes in, what is taken can be written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coordinator_report report, again;
    enum report_command command;
    int64_t grace_ms;
    struct error e = ERROR_INIT;

    if (report_decode((const char *)data, size, &report, &e) == 0) {
        auto_free char *text = report_encode(&report);
        if (report_decode(text, strlen(text), &again, &e) < 0 || again.member_count != report.member_count)
            abort();
        report_release(&report);
        report_release(&again);
    } else if (e.kind == ERROR_NONE || e.text[0] == '\0') {
        abort();
    }
    struct error f = ERROR_INIT;
    if (report_command_decode((const char *)data, size, &command, &grace_ms, &f) < 0 && f.text[0] == '\0')
        abort();
    return 0;
}
