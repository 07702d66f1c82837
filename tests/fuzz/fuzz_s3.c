/* What an S3 server answers, and the credentials file: whatever comes, it is read within its bounds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "s3/credentials.h"
#include "s3/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const NAMES[] = { "Key", "Code", "UploadId", "NextContinuationToken" };
    struct error e = ERROR_INIT;
    struct s3_credentials c;
    struct xml whole = { (const char *)data, size }, at = whole, entry;
    while (xml_next(&at, "Contents", &entry)) {
        if (entry.text < whole.text || entry.text + entry.len > whole.text + whole.len || at.text + at.len != whole.text + whole.len)
            abort();
        for (size_t i = 0; i < COUNT(NAMES); i++)
            free(xml_text(entry, NAMES[i]));
    }
    for (size_t i = 0; i < COUNT(NAMES); i++)
        free(xml_text(whole, NAMES[i]));
    if (s3_credentials_of_answer((const char *)data, size, &c, &e) == 0)
        s3_credentials_release(&c);
    auto_free char *text = xstrndup((const char *)data, size);
    if (s3_credentials_of_profile(text, "default", &c, &e) == 0)
        s3_credentials_release(&c);
    return 0;
}
