/* The one file of this room that reads the environment. */
#include <stdlib.h>

#include "kube/config.h"

static const char *set_or_null(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

void kube_config_source(struct kube_config_source *ret_source)
{
    *ret_source = (struct kube_config_source){
        .paths = set_or_null("KUBECONFIG"),
        .home = set_or_null("HOME"),
        .service_host = set_or_null("KUBERNETES_SERVICE_HOST"),
        .service_port = set_or_null("KUBERNETES_SERVICE_PORT"),
    };
}
