package apiserver

import (
	"context"
	"fmt"
	"io"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
)

// fakeLogs answers with what it was asked.
type fakeLogs struct{}

func (fakeLogs) Open(_ context.Context, pod *corev1.Pod, container string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(fmt.Sprintf("log of %s/%s %s follow=%v previous=%v\n", pod.Namespace, pod.Name, container, o.Follow, o.Previous))), nil
}

// fakePlanner places every pod on one node, if Apply would take it.
type fakePlanner struct{}

func (fakePlanner) Plan(ctx context.Context, v *fsm.View, user string, groups []string, setup []fsm.Command, pods []*corev1.Pod) (*berthv1.PlanStatus, error) {
	status := &berthv1.PlanStatus{Revision: v.Revision()}
	fork := v.Fork()
	for _, c := range setup {
		if err := fork.Try(v.TimeUnixNano(), fsm.Proposal{User: user, Groups: groups, Command: c})[0].Err(); err != nil {
			return nil, err
		}
	}
	for _, pod := range pods {
		if err := GoOn(ctx); err != nil {
			return nil, err
		}
		p := berthv1.PlanPlacement{Pod: berthv1.PodReference{Namespace: pod.Namespace, Name: pod.Name}, Node: "n1"}
		r := fork.Try(v.TimeUnixNano(), fsm.Proposal{User: user, Groups: groups, Command: &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}}})[0]
		if err := r.Err(); err != nil {
			p.Node, p.Message = "", err.Error()
		} else {
			p.Pod.Priority = *r.Object.(*corev1.Pod).Spec.Priority
		}
		status.Placements = append(status.Placements, p)
	}
	return status, nil
}

// ScaleIn takes the first pods.
func (fakePlanner) ScaleIn(v *fsm.View, rs *appsv1.ReplicaSet, fewer int) []berthv1.PlanRemoval {
	var out []berthv1.PlanRemoval
	v.PodsOf(owners.IDOf(rs), func(_ string, pod *corev1.Pod) bool {
		out = append(out, berthv1.PlanRemoval{Pod: berthv1.PodReference{Namespace: pod.Namespace, Name: pod.Name}, Rule: "first"})
		return len(out) < fewer
	})
	return out
}
