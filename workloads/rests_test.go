package workloads

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestJobsAtRest: a Job waits for its turn with a new leader only while its pods do what it asks for, and nothing else is due.
func TestJobsAtRest(t *testing.T) {
	two, yes := int32(2), true
	seconds := int64(9)
	for what, c := range map[string]struct {
		change func(j *batchv1.Job)
		rests  bool
	}{
		"its pods run":     {func(*batchv1.Job) {}, true},
		"it is done":       {func(j *batchv1.Job) { j.Status = batchv1.JobStatus{CompletionTime: &metav1.Time{}} }, true},
		"one is not ready": {func(j *batchv1.Job) { j.Status.Ready = new(int32) }, false},
		"one ended uncounted": {func(j *batchv1.Job) {
			j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{"u"}}
		}, false},
		"it is suspended now":    {func(j *batchv1.Job) { j.Spec.Suspend = &yes }, false},
		"it has a deadline":      {func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &seconds }, false},
		"it goes when it ends":   {func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = &two }, false},
		"it is about to go":      {func(j *batchv1.Job) { j.DeletionTimestamp = &metav1.Time{} }, false},
		"it is to be of one pod": {func(j *batchv1.Job) { j.Spec.Parallelism = nil }, false},
	} {
		j := &batchv1.Job{Spec: batchv1.JobSpec{Parallelism: &two}, Status: batchv1.JobStatus{Active: 2, Ready: &two}}
		if c.change(j); rests(j) != c.rests {
			t.Errorf("%s: rests is %t", what, rests(j))
		}
	}
}
