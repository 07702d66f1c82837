/* judge.c — what an answer means for the request. Pure. */
#include <string.h>

#include "base/mem.h"
#include "s3/client.h"

#define FIRST_PAUSE_MS 100
#define LONGEST_PAUSE_MS 5000

static bool is_one_of(const char *code, const char *const *codes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(code, codes[i]) == 0)
            return true;
    return false;
}

enum s3_verdict s3_judge(long status, const char *code)
{
    static const char *const EXPIRED[] = { "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired" };
    static const char *const PASSING[] = { "InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "BadDigest",
                                           "ConditionalRequestConflict", "RequestLimitExceeded", "Throttling", "ThrottlingException" };
    if (is_one_of(code, EXPIRED, COUNT(EXPIRED)))
        return S3_REFRESH;
    if (is_one_of(code, PASSING, COUNT(PASSING)))
        return S3_AGAIN;
    if (status >= 200 && status < 300)
        return code[0] == '\0' ? S3_FINE : S3_NO;
    return status == 429 || status == 408 || (status >= 500 && status != 501) ? S3_AGAIN : S3_NO;
}

int64_t s3_pause_ms(int attempt)
{
    int64_t pause = FIRST_PAUSE_MS;
    for (int i = 1; i < attempt && pause < LONGEST_PAUSE_MS; i++)
        pause *= 2;
    return pause < LONGEST_PAUSE_MS ? pause : LONGEST_PAUSE_MS;
}
