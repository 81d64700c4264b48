package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/envfile"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// resolver finds what a container's environment and volumes refer to. It reads each referenced object once.
type resolver struct {
	pod        *corev1.Pod
	alloc      corev1.ResourceList // stands in for limits that are not set
	podIPs     []string
	hostIPs    []string
	getter     Getter
	apiHost    string // where the pod finds the API; empty: nowhere
	apiPort    string
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	volumeDir  func(volume string) string // nil: there are none
	images     map[string]string          // what volumes of images show, by their names
	giveUp     context.CancelCauseFunc    // what is under way for a volume, once its server has had its time
}

// environment returns KEY=VALUE in order of declaration: envFrom first, env over it, and services where neither says
// anything else.
func (r *resolver) environment(ctx context.Context, c *corev1.Container) ([]string, map[string]string, error) {
	var order []string
	values := map[string]string{}
	set := func(name, value string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = value
	}
	for i := range c.EnvFrom {
		if err := r.envFrom(ctx, &c.EnvFrom[i], set); err != nil {
			return nil, nil, err
		}
	}
	linked, services, err := r.serviceVariables(ctx)
	if err != nil {
		return nil, nil, err
	}
	lookup := func(name string) (string, bool) {
		v, ok := values[name]
		if !ok {
			v, ok = services[name]
		}
		return v, ok
	}
	for i := range c.Env {
		e := &c.Env[i]
		value := expand(e.Value, lookup)
		if e.Value == "" && e.ValueFrom != nil {
			v, ok, err := r.value(ctx, c, e.ValueFrom)
			if err != nil {
				return nil, nil, fmt.Errorf("environment variable %s: %w", e.Name, err)
			}
			if !ok {
				continue // optional and not there
			}
			value = v
		}
		set(e.Name, value)
	}
	for _, name := range linked {
		if _, ok := values[name]; !ok {
			set(name, services[name])
		}
	}
	env := make([]string, len(order))
	for i, name := range order {
		env[i] = name + "=" + values[name]
	}
	return env, values, nil
}

func (r *resolver) envFrom(ctx context.Context, from *corev1.EnvFromSource, set func(name, value string)) error {
	switch {
	case from.ConfigMapRef != nil:
		cm, err := r.configMap(ctx, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if err != nil || cm == nil {
			return err
		}
		for _, k := range slices.Sorted(maps.Keys(cm.Data)) {
			set(from.Prefix+k, cm.Data[k])
		}
	case from.SecretRef != nil:
		s, err := r.secret(ctx, from.SecretRef.Name, from.SecretRef.Optional)
		if err != nil || s == nil {
			return err
		}
		for _, k := range slices.Sorted(maps.Keys(s.Data)) {
			set(from.Prefix+k, string(s.Data[k]))
		}
	}
	return nil
}

// fromFile reads a variable from a file that an earlier container of the pod wrote into an emptyDir.
func (r *resolver) fromFile(ctx context.Context, ref *corev1.FileKeySelector) (string, bool, error) {
	i := slices.IndexFunc(r.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == ref.VolumeName })
	if i < 0 || r.pod.Spec.Volumes[i].EmptyDir == nil || r.volumeDir == nil {
		return "", false, fmt.Errorf("fileKeyRef: %q is no emptyDir volume of the pod", ref.VolumeName)
	}
	// A container may have mounted there what does not answer.
	result := make(chan string, 1)
	v, err := "", mounts.Apart(ctx, func() error {
		v, err := envfile.Value(r.volumeDir(ref.VolumeName), ref.Path, ref.Key)
		result <- v
		return err
	})
	if err == nil {
		v = <-result
	}
	optional := ref.Optional != nil && *ref.Optional
	switch {
	case err == nil && v != "":
		return v, true, nil
	case optional && (err == nil || errors.Is(err, fs.ErrNotExist)):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("fileKeyRef: file %q of volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	return "", false, fmt.Errorf("fileKeyRef: file %q of volume %q does not have %q", ref.Path, ref.VolumeName, ref.Key)
}

func (r *resolver) value(ctx context.Context, c *corev1.Container, from *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		v, err := r.field(from.FieldRef.FieldPath)
		return v, true, err
	case from.ResourceFieldRef != nil:
		v, err := r.resourceField(c, from.ResourceFieldRef)
		return v, true, err
	case from.FileKeyRef != nil:
		return r.fromFile(ctx, from.FileKeyRef)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		cm, err := r.configMap(ctx, ref.Name, ref.Optional)
		if err != nil || cm == nil {
			return "", false, err
		}
		v, ok := cm.Data[ref.Key]
		if !ok && (ref.Optional == nil || !*ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, r.pod.Namespace, ref.Name)
		}
		return v, ok, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		s, err := r.secret(ctx, ref.Name, ref.Optional)
		if err != nil || s == nil {
			return "", false, err
		}
		v, ok := s.Data[ref.Key]
		if !ok && (ref.Optional == nil || !*ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, r.pod.Namespace, ref.Name)
		}
		return string(v), ok, nil
	}
	return "", false, fmt.Errorf("the source of the value is of a kind that this node does not know")
}

func (r *resolver) configMap(ctx context.Context, name string, optional *bool) (*corev1.ConfigMap, error) {
	if cm, ok := r.configMaps[name]; ok {
		return cm, nil
	}
	if r.getter == nil {
		return nil, fmt.Errorf("configmap %s/%s cannot be read: this node has no access to objects", r.pod.Namespace, name)
	}
	cm, err := r.getter.ConfigMap(ctx, r.pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && optional != nil && *optional {
			return nil, nil
		}
		return nil, fmt.Errorf("reading configmap %s/%s: %w", r.pod.Namespace, name, err)
	}
	if r.configMaps == nil {
		r.configMaps = map[string]*corev1.ConfigMap{}
	}
	r.configMaps[name] = cm
	return cm, nil
}

func (r *resolver) secret(ctx context.Context, name string, optional *bool) (*corev1.Secret, error) {
	if s, ok := r.secrets[name]; ok {
		return s, nil
	}
	if r.getter == nil {
		return nil, fmt.Errorf("secret %s/%s cannot be read: this node has no access to objects", r.pod.Namespace, name)
	}
	s, err := r.getter.Secret(ctx, r.pod.Namespace, name)
	if err != nil {
		if apierrors.IsNotFound(err) && optional != nil && *optional {
			return nil, nil
		}
		return nil, fmt.Errorf("reading secret %s/%s: %w", r.pod.Namespace, name, err)
	}
	if r.secrets == nil {
		r.secrets = map[string]*corev1.Secret{}
	}
	r.secrets[name] = s
	return s, nil
}

// field is the downward API: a field of the pod as text.
func (r *resolver) field(path string) (string, error) {
	p := r.pod
	if name, key, ok := strings.Cut(path, "['"); ok && strings.HasSuffix(key, "']") {
		key = strings.TrimSuffix(key, "']")
		switch name {
		case "metadata.labels":
			return p.Labels[key], nil
		case "metadata.annotations":
			return p.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "metadata.labels":
		return formatMap(p.Labels), nil
	case "metadata.annotations":
		return formatMap(p.Annotations), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.podIP":
		return first(r.podIPs), nil
	case "status.podIPs":
		return strings.Join(r.podIPs, ","), nil
	case "status.hostIP":
		return first(r.hostIPs), nil
	case "status.hostIPs":
		return strings.Join(r.hostIPs, ","), nil
	}
	return "", fmt.Errorf("field %q of a pod is not available to containers", path)
}

// first is the main one of several addresses; empty where there is none.
func first(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}

// formatMap writes labels or annotations one to a line, sorted, as downward API files have them.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%s=%q", k, m[k]))
	}
	return strings.Join(lines, "\n")
}

// resourceField is a container's request or limit in units of the divisor, rounded up. A limit that is not set is its pod's, or else what
// the node offers.
func (r *resolver) resourceField(c *corev1.Container, ref *corev1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		if c = containerByName(r.pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %s not found", ref.ContainerName)
		}
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	var list corev1.ResourceList
	switch {
	case ok && kind == "limits":
		list = c.Resources.Limits
	case ok && kind == "requests":
		list = c.Resources.Requests
	default:
		return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
	}
	q := list[corev1.ResourceName(name)]
	if q.IsZero() && kind == "limits" {
		q = r.outerLimit(corev1.ResourceName(name))
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(corev1.ResourceCPU) {
		return fmt.Sprint(ceilDiv(q.MilliValue(), divisor.MilliValue())), nil
	}
	return fmt.Sprint(ceilDiv(q.Value(), divisor.Value())), nil
}

// outerLimit is what a container without a limit of its own can use, as the kubelet says it: huge pages nobody has without asking.
func (r *resolver) outerLimit(name corev1.ResourceName) resource.Quantity {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		return resource.Quantity{}
	}
	if of := r.pod.Spec.Resources; of != nil && name != corev1.ResourceEphemeralStorage {
		if q := of.Limits[name]; !q.IsZero() {
			return q
		}
	}
	return r.alloc[name]
}

func ceilDiv(a, b int64) int64 {
	if b <= 0 {
		return a
	}
	return (a + b - 1) / b
}
