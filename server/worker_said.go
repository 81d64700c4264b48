package server

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// Bounds of what a worker says of a pod or of its node. Texts are cut; of what
// is too many, or of another pod, the rest is left out.
const (
	maxSaidText = model.MaxStatusTextBytes
	maxSaidList = model.MaxStatusList // as many containers as a pod can have
	maxSaidMap  = 256                 // as many resources as a node can have
	// saidAhead is how far ahead of a server's clock a worker's may be.
	saidAhead = time.Hour
)

// heard takes what a worker says for what it can be, and says what of it was not
// taken, so that it can be told; "" if all was.
type heard struct {
	now   time.Time
	taken []string
}

func (h *heard) not(format string, args ...any) {
	if len(h.taken) < 8 {
		h.taken = append(h.taken, fmt.Sprintf(format, args...))
	}
}

func (h *heard) String() string { return strings.Join(h.taken, "; ") }

// podStatus makes a status one that a worker may say of a pod; pod is nil when
// it is not known here. It fails for a phase that there is not.
func (h *heard) podStatus(pod *corev1.Pod, s *corev1.PodStatus) error {
	switch s.Phase {
	case "", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
	default:
		return fmt.Errorf("there is no phase %.40q", string(s.Phase))
	}
	h.status(s)
	own := append(model.WorkerConditions(), corev1.DisruptionTarget, corev1.PodScheduled)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool {
		foreign := !slices.Contains(own, c.Type) || !isConditionStatus(c.Status)
		if foreign {
			h.not("the condition %.40q with status %.40q", string(c.Type), string(c.Status))
		}
		return foreign
	})
	if pod != nil {
		h.containers("containerStatuses", &s.ContainerStatuses, names(pod.Spec.Containers, func(c *corev1.Container) string { return c.Name }))
		h.containers("initContainerStatuses", &s.InitContainerStatuses, names(pod.Spec.InitContainers, func(c *corev1.Container) string { return c.Name }))
		h.resources("containerStatuses", s.ContainerStatuses, pod.Spec.Containers)
		h.resources("initContainerStatuses", s.InitContainerStatuses, pod.Spec.InitContainers)
		h.containers("ephemeralContainerStatuses", &s.EphemeralContainerStatuses,
			names(pod.Spec.EphemeralContainers, func(c *corev1.EphemeralContainer) string { return c.Name }))
	}
	return nil
}

func isConditionStatus(s corev1.ConditionStatus) bool {
	return s == corev1.ConditionTrue || s == corev1.ConditionFalse || s == corev1.ConditionUnknown
}

func names[T any](of []T, name func(*T) string) []string {
	out := make([]string, len(of))
	for i := range of {
		out[i] = name(&of[i])
	}
	return out
}

// containers leaves the statuses of containers that the pod has, each once.
func (h *heard) containers(field string, said *[]corev1.ContainerStatus, of []string) {
	seen := map[string]bool{}
	*said = slices.DeleteFunc(*said, func(c corev1.ContainerStatus) bool {
		wrong := seen[c.Name] || !slices.Contains(of, c.Name)
		if wrong {
			h.not("status.%s of container %.40q, which the pod does not have, or twice", field, c.Name)
		}
		seen[c.Name] = true
		return wrong
	})
	for i := range *said {
		if c := &(*said)[i]; c.RestartCount < 0 {
			h.not("status.%s of container %s: %d restarts", field, c.Name, c.RestartCount)
			c.RestartCount = 0
		}
	}
}

// resources leaves the amounts of what containers ask for, and of cpu and memory: a
// pod is charged for them (model.Charged), and nothing else is given to it.
func (h *heard) resources(field string, said []corev1.ContainerStatus, of []corev1.Container) {
	for i := range said {
		c := &said[i]
		at := slices.IndexFunc(of, func(o corev1.Container) bool { return o.Name == c.Name })
		leave := func(list, asked corev1.ResourceList) {
			for name := range list {
				if _, ok := asked[name]; !ok && name != corev1.ResourceCPU && name != corev1.ResourceMemory {
					h.not("status.%s of container %s: %.40q, which it does not ask for", field, c.Name, string(name))
					delete(list, name)
				}
			}
		}
		leave(c.AllocatedResources, of[at].Resources.Requests)
		if c.Resources != nil {
			leave(c.Resources.Requests, of[at].Resources.Requests)
			leave(c.Resources.Limits, of[at].Resources.Limits)
		}
	}
}

// nodeStatus makes a status one that a worker may say of its node.
func (h *heard) nodeStatus(s *corev1.NodeStatus) {
	h.status(s)
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.NodeCondition) bool {
		wrong := c.Type == "" || !isConditionStatus(c.Status)
		if wrong {
			h.not("the condition %.40q with status %.40q", string(c.Type), string(c.Status))
		}
		return wrong
	})
}

// place is where in a status a value stands. Its name is made only where something is told of it: nearly nothing is.
type place struct {
	in    *place       // nil: the status itself
	of    reflect.Type // the struct
	field int          // of the struct
}

func (p *place) String() string {
	if p.in == nil {
		return "status"
	}
	return p.in.String() + "." + p.of.Field(p.field).Name
}

var timeOfStatus = reflect.TypeFor[metav1.Time]()

// status bounds every text, list, map and time of a status.
func (h *heard) status(s any) { h.value(&place{}, reflect.ValueOf(s).Elem()) }

// value bounds what can be set of one of a status's values.
func (h *heard) value(at *place, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if text := model.CutText(v.String(), maxSaidText); text != v.String() {
			h.not("%s: the rest of %d bytes", at.String(), v.Len())
			v.SetString(text)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			h.value(at, v.Elem())
		}
	case reflect.Struct:
		if v.Type() == timeOfStatus {
			h.time(at, v.Addr().Interface().(*metav1.Time))
			return
		}
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				h.value(&place{at, v.Type(), i}, f)
			}
		}
	case reflect.Slice:
		if v.Len() > maxSaidList {
			h.not("%s: all but %d of %d", at.String(), maxSaidList, v.Len())
			v.Set(v.Slice(0, maxSaidList))
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			h.value(at, v.Index(i))
		}
	case reflect.Map:
		h.entries(at, v)
	}
}

// time is one that can be.
func (h *heard) time(at *place, t *metav1.Time) {
	if t.After(h.now.Add(saidAhead)) || t.UTC().Year() < 1970 && !t.IsZero() {
		h.not("%s: %s", at.String(), t.UTC().Truncate(time.Second))
		*t = metav1.Time{Time: h.now.Truncate(time.Second)}
	}
}

// entries bounds a map: too many are none, since which of them to take would be
// anybody's choice.
func (h *heard) entries(at *place, v reflect.Value) {
	tooLong := v.Len() > maxSaidMap
	for _, key := range v.MapKeys() {
		tooLong = tooLong || key.Kind() == reflect.String && key.Len() > math.MaxUint8*2
	}
	if tooLong {
		h.not("%s: %d keys, or one that is too long", at.String(), v.Len())
		v.SetZero()
	}
}
