package fsm

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
)

// What rows hold, roughly, in bytes of memory: the change feed keeps old rows,
// and is bounded by what they hold (store.Definition.Size).

// structBytes is about what a Kubernetes object takes beyond its contents.
const structBytes = 1536

// smallBytes is about what a row of bookkeeping takes beyond its texts.
const smallBytes = 128

// What is sure to come to a pod that has just been made counts from the beginning, so that a state that is full of pods
// has room for them to be bound and to run: a status with one for each container, and a diagnosis.
const (
	statusBytes          = 1024
	containerStatusBytes = 512
	diagnosisBytes       = 1024
)

// podTakes is what a pod counts in the state's bytes. The spec counts for each who shares it.
func (v *live) podTakes(pod *corev1.Pod) int {
	shared := v.cache.specs.of(&pod.Spec)
	if shared == nil {
		return podTakes(pod, specBytes(&pod.Spec))
	}
	return podTakes(pod, shared.bytes+podsOwn{pod.Spec.NodeName, pod.Spec.Hostname}.bytes())
}

func podTakes(pod *corev1.Pod, spec int) int {
	containers := len(pod.Spec.InitContainers) + len(pod.Spec.Containers) + len(pod.Spec.EphemeralContainers)
	return structBytes + spec + pod.ObjectMeta.Size() + max(pod.Status.Size(), statusBytes+containers*containerStatusBytes)
}

// specBytes is what a spec holds: that of its template, and what is the pod's own.
func specBytes(spec *corev1.PodSpec) int {
	like := *spec
	own := takeOwn(&like)
	return like.Size() + own.bytes()
}

func (o podsOwn) bytes() int { return len(o.node) + len(o.hostname) }

// entryTakes is what an entry of the queue counts in the state's bytes.
func entryTakes(e *QueueEntry) int {
	return e.Bytes(e, false) + len(e.Refusal) + max(e.Diagnosis.Bytes(), diagnosisBytes)
}

func textBytes(texts []string) (n int) {
	for _, s := range texts {
		n += 16 + len(s)
	}
	return n
}

// podBytes: most changes of a pod make a new struct that shares nearly all with
// the old one, by slices that are immutable.
func podBytes(before, now *corev1.Pod, gone bool) int {
	n := structBytes
	if gone || !sameSpec(&before.Spec, &now.Spec) {
		n += before.Spec.Size()
	}
	if gone || len(before.ManagedFields) == 0 || !sameSlice(before.ManagedFields, now.ManagedFields) {
		n += before.ObjectMeta.Size()
	}
	if gone || len(before.Status.Conditions) == 0 || !sameSlice(before.Status.Conditions, now.Status.Conditions) {
		n += before.Status.Size()
	}
	return n
}

// sameSlice says whether two slices are one in memory.
func sameSlice[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// eventBytes adds up the texts: most events have nothing else.
func eventBytes(before, _ *corev1.Event, _ bool) int {
	n, about := structBytes, &before.InvolvedObject
	for _, s := range [...]string{
		before.Name, before.GenerateName, before.Namespace, string(before.UID), about.Kind, about.APIVersion, about.Namespace,
		about.Name, string(about.UID), about.ResourceVersion, about.FieldPath, before.Message, before.Source.Component, before.Source.Host,
		before.Type, before.Action, before.ReportingController, before.ReportingInstance,
	} {
		n += len(s)
	}
	if len(before.Labels) > 0 || len(before.Annotations) > 0 || len(before.ManagedFields) > 0 || before.Related != nil ||
		len(before.OwnerReferences) > 0 || len(before.Finalizers) > 0 {
		n += before.Size()
	}
	return n
}

func preemptionBytes(before, _ *berthv1.Preemption, _ bool) int {
	return structBytes + before.ObjectMeta.Size() + 512*len(before.Status.Victims) + len(before.Status.ReleasedReason)
}

// bytes is about what a plan's record holds. What it names is mostly shared with
// others as long as these are there, and is the record's own then.
func (r *PlanRecord) bytes() int {
	n := 256 + 192*len(r.Decisions)
	for i := range r.Decisions {
		d := &r.Decisions[i]
		n += len(d.Key) + len(d.UID) + len(d.Refused) + len(d.Node) + len(d.RunnerUp) + len(d.Preemption)
	}
	for _, d := range r.Diagnoses {
		n += d.Bytes()
	}
	return n
}

// whole is what a row counts in the state's bytes where that is all that it holds, as size says of one that is removed.
func whole[T any](size func(before, now T, gone bool) int) func(*live, T) int {
	return func(_ *live, row T) int {
		var none T
		return size(row, none, true)
	}
}

func objectBytes(before, _ *Object, _ bool) int { return structBytes + before.Value.Size() }

func configBytes(before, _ *berthv1.SchedulerConfiguration, _ bool) int {
	b, err := json.Marshal(before) // seldom
	if err != nil {
		return structBytes
	}
	return structBytes + 2*len(b)
}
