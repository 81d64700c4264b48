package manifests

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // its kinds and defaults
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/util/hash"

	"github.com/berth-dev/berth/apiserver/yamlfile"
	"github.com/berth-dev/berth/worker"
)

// decode makes what a file holds the pod that a node runs: with defaults, validated, and under the name that it has in the
// cluster, as Kubernetes' node agent does it. Errors name the file and, as far as it can be told, the line.
func decode(file string, data []byte, node string) (*corev1.Pod, error) {
	if err := oneDocument(data); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	object, err := runtime.Decode(strict, data)
	if err != nil {
		return nil, yamlfile.Placed(file, data, placedType(err))
	}
	pod, ok := object.(*core.Pod)
	if !ok {
		kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return nil, fmt.Errorf("%s: it is a %s, and a node runs pods", file, kinds[0].Kind)
	}
	if pod.Name == "" {
		return nil, yamlfile.Placed(file, data, field.Required(field.NewPath("metadata", "name"), "a static pod needs a name"))
	}
	if err := resolvePriority(pod); err != nil {
		return nil, yamlfile.Placed(file, data, err)
	}
	adapt(pod, file, node)
	capabilities.Setup(true, 0) // whoever writes the folder is root on the node anyway
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
	if wrong := validation.ValidatePodCreate(pod, options); len(wrong) > 0 {
		var all []error
		for _, one := range wrong {
			all = append(all, yamlfile.Placed(file, data, one))
		}
		return nil, errors.Join(all...)
	}
	// SP2: what only the servers have cannot be told from a file.
	if _, kind, err := podutil.HasAPIObjectReference(pod); err != nil || kind != "" {
		return nil, fmt.Errorf("%s: a static pod may not refer to %s, which only the API has: %w", file, kind, errors.Join(err, errRefers))
	}
	out := new(corev1.Pod)
	if err := corev1conversion.Convert_core_Pod_To_v1_Pod(pod, out, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return out, nil
}

var errRefers = errors.New("give it what it needs as files of the node")

// oneDocument: what stands behind a second "---" would be passed over.
func oneDocument(data []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var doc yaml.Node
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF) && n == 0:
			return errors.New("it is empty")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err // with the line
		case n > 0:
			return fmt.Errorf("line %d: a second document begins; a file holds one pod", doc.Line)
		}
	}
}

// typed is how a decoder names a field that is of another type than its kind has it.
var typed = regexp.MustCompile(`Go struct field \w+\.(\S+) of type`)

// placedType gives an error about a field's type the field's path.
func placedType(err error) error {
	if m := typed.FindStringSubmatch(err.Error()); m != nil {
		return field.TypeInvalid(field.NewPath(m[1]), field.OmitValueType{}, err.Error())
	}
	return err
}

// resolvePriority gives a pod the priority of its class, if that is one of those that every cluster has: of others, only the
// servers know, and say it of the pod's mirror.
func resolvePriority(pod *core.Pod) error {
	for _, class := range schedulingv1.SystemPriorityClasses() {
		if class.Name != pod.Spec.PriorityClassName {
			continue
		}
		if p := pod.Spec.Priority; p != nil && *p != class.Value {
			return field.Invalid(field.NewPath("spec", "priority"), *p, fmt.Sprintf("the class %s has %d", class.Name, class.Value))
		}
		value := class.Value
		pod.Spec.Priority = &value
	}
	return nil
}

// adapt does to a pod of a file what Kubernetes' node agent does: its name is that of the node, too, its UID follows from what
// it is, and it is not put out for the node's troubles.
func adapt(pod *core.Pod, file, node string) {
	sum := fnv.New128a()
	hash.DeepHashObject(sum, pod)
	fmt.Fprintf(sum, "host:%s", node)
	fmt.Fprintf(sum, "file:%s", file)
	pod.UID = types.UID(hex.EncodeToString(sum.Sum(nil)))
	pod.Name += "-" + strings.ToLower(node)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = node
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[worker.ConfigHashAnnotation] = string(pod.UID)
	pod.Annotations[worker.ConfigSourceAnnotation] = "file"
	pod.Annotations[worker.ManifestAnnotation] = file
	helper.AddOrUpdateTolerationInPod(pod, &core.Toleration{Operator: core.TolerationOpExists, Effect: core.TaintEffectNoExecute})
	pod.Status = core.PodStatus{Phase: core.PodPending}
}
