/* A kubeconfig from anywhere, and what a credential plugin prints. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kube/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kube_config_text file = { .path = "fuzz/kubeconfig", .text = (const char *)data, .len = size };
    struct kube_config_text twice[] = { file, file };
    struct kube_credential credential = { .token = NULL };
    struct kube_config *config = NULL;
    struct error e;

    if (size == 0)
        file.text = "";
    if (kube_config_parse(&file, 1, NULL, &config, &e) == 0 && (config->server == NULL || config->ns == NULL))
        abort();
    kube_config_free(config);
    config = NULL;
    if (kube_config_parse(twice, 2, "c", &config, &e) == 0 && strcmp(config->context, "c") != 0)
        abort();
    kube_config_free(config);
    if (kube_credential_parse((const char *)data, size, "client.authentication.k8s.io/v1", &credential, &e) == 0 && credential.token == NULL &&
        credential.cert_pem == NULL)
        abort();
    kube_credential_release(&credential);
    return 0;
}
