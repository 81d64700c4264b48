#!/bin/sh
# Makes the zz_generated files again. The generators are not dependencies of the
# module; `go run` with a version fetches them into a module of its own.
set -eu
cd "$(dirname "$0")"
deepcopy=${DEEPCOPY_GEN:-"go run k8s.io/code-generator/cmd/deepcopy-gen@v0.36.3"}
openapi=${OPENAPI_GEN:-"go run k8s.io/kube-openapi/cmd/openapi-gen@v0.0.0-20260317180543-43fb72c5454a"}

$deepcopy --go-header-file /dev/null --output-file zz_generated.deepcopy.go .
$openapi --go-header-file /dev/null --report-filename /dev/null \
  --output-dir . --output-pkg github.com/berth-dev/berth/api/berthv1 \
  --output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go .

# The generator knows a model's published name only for packages it generates,
# so references to upstream's models get theirs here.
sed -i \
  -e 's#"k8s.io/apimachinery/pkg/apis/meta/v1\.\([A-Za-z]*\)"#metav1.\1{}.OpenAPIModelName()#g' \
  -e 's#"k8s.io/apimachinery/pkg/runtime\.RawExtension"#runtime.RawExtension{}.OpenAPIModelName()#g' \
  -e 's#"k8s.io/api/core/v1\.\([A-Za-z]*\)"#corev1.\1{}.OpenAPIModelName()#g' \
  -e 's#^import (#import (\n\tcorev1 "k8s.io/api/core/v1"\n\tmetav1 "k8s.io/apimachinery/pkg/apis/meta/v1"\n\t"k8s.io/apimachinery/pkg/runtime"#' \
  zz_generated.openapi.go
gofmt -w zz_generated.openapi.go
