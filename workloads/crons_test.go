package workloads

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestNoJobBesideOneThatIsForgotten: a Job that the CronJob's status does not tell of, as the leader that made it was lost before it said so,
// is told of before another is made, where no two may go on.
func TestNoJobBesideOneThatIsForgotten(t *testing.T) {
	yes := true
	owned := []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "tick", UID: "1", Controller: &yes}}
	done := []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	for name, tt := range map[string]struct {
		policy batchv1.ConcurrencyPolicy
		active []corev1.ObjectReference
		job    batchv1.Job // that is there
		waits  bool
	}{
		"forbidden":       {batchv1.ForbidConcurrent, nil, batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-1", OwnerReferences: owned}}, true},
		"to be replaced":  {batchv1.ReplaceConcurrent, nil, batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-1", OwnerReferences: owned}}, true},
		"allowed":         {batchv1.AllowConcurrent, nil, batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-1", OwnerReferences: owned}}, false},
		"known":           {batchv1.ForbidConcurrent, []corev1.ObjectReference{{Name: "tick-1"}}, batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-1", OwnerReferences: owned}}, false},
		"finished":        {batchv1.ForbidConcurrent, nil, batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-1", OwnerReferences: owned}, Status: batchv1.JobStatus{Conditions: done}}, false},
		"somebody else's": {batchv1.ForbidConcurrent, nil, batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-1"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "tick", Namespace: "default", UID: "1"},
				Spec: batchv1.CronJobSpec{ConcurrencyPolicy: tt.policy}, Status: batchv1.CronJobStatus{Active: tt.active}}
			tt.job.Namespace = "default"
			c := fake.NewClientset(cron, &tt.job)
			f := clientinformers.NewSharedInformerFactory(c, 0)
			f.Batch().V1().Jobs().Informer()
			f.Batch().V1().CronJobs().Informer()
			f.StartWithContext(t.Context())
			f.WaitForCacheSyncWithContext(t.Context())
			next := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-2", OwnerReferences: owned}}
			_, err := withKnownJobs{c, f.Batch()}.BatchV1().Jobs("default").Create(t.Context(), next, metav1.CreateOptions{})
			if apierrors.IsConflict(err) != tt.waits || err != nil && !tt.waits {
				t.Errorf("it is made: %v", err)
			}
			now, err := c.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if told := len(now.Status.Active) == 1; told != (tt.waits || len(tt.active) == 1) {
				t.Errorf("the CronJob tells of %v", now.Status.Active)
			}
		})
	}
}
