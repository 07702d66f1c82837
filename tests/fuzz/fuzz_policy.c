/* RINGMASTER_POLICY as a sidecar finds it: read or refused, and what is read decides without fault. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "job/restart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    auto_free char *text = xstrndup((const char *)data, size);
    auto_job struct training_job *job = NULL;
    struct error e = ERROR_INIT;

    if (restart_policy_decode(text, &job, &e) < 0) {
        if (e.text[0] == '\0')
            abort();
        return 0;
    }
    struct restart_counters counters = { .restarts = 3, .restarts_counted = 2, .streak = 40 };
    for (enum job_role role = 0; role < ROLE_COUNT; role++) {
        struct failure_event event = { .role = role, .has_exit = true, .exit_code = 139, .reason = "Error", .message = "aaaa" };
        struct restart_decision d;
        restart_decide(job, &counters, &event, 1700000000000, &d);
        if (d.delay_ms < 0 || strnlen(d.message, sizeof d.message) == sizeof d.message)
            abort();
    }
    auto_free char *again = restart_policy_encode(job);
    return again == NULL;
}
