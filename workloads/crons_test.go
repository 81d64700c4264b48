package workloads

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/controller/cronjob"
)

// TestNoJobBesideOneThatIsForgotten: a Job that the CronJob's status does not tell of, as the leader that made it was lost before it said so,
// is told of before another is made, where no two may go on.
func TestNoJobBesideOneThatIsForgotten(t *testing.T) {
	yes := true
	owned := []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "CronJob", Name: "tick", UID: "1", Controller: &yes}}
	done := []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	at := map[string]string{batchv1.CronJobScheduledTimestampAnnotation: "2026-01-01T00:01:00Z"}
	job := func(change func(j *batchv1.Job)) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-29453761", Namespace: "default", OwnerReferences: owned, Annotations: at}}
		change(j)
		return j
	}
	as := func(*batchv1.Job) {}
	for name, tt := range map[string]struct {
		policy batchv1.ConcurrencyPolicy
		active []corev1.ObjectReference
		job    *batchv1.Job // that is there
		waits  bool
	}{
		"forbidden":       {batchv1.ForbidConcurrent, nil, job(as), true},
		"to be replaced":  {batchv1.ReplaceConcurrent, nil, job(as), true},
		"allowed":         {batchv1.AllowConcurrent, nil, job(as), false},
		"known":           {batchv1.ForbidConcurrent, []corev1.ObjectReference{{Name: "tick-29453761"}}, job(as), false},
		"finished":        {batchv1.ForbidConcurrent, nil, job(func(j *batchv1.Job) { j.Status.Conditions = done }), false},
		"somebody else's": {batchv1.ForbidConcurrent, nil, job(func(j *batchv1.Job) { j.OwnerReferences = nil }), false},
		"made by hand": {batchv1.ReplaceConcurrent, nil, job(func(j *batchv1.Job) {
			j.Name, j.Annotations = "now", map[string]string{"cronjob.kubernetes.io/instantiate": "manual"}
		}), false},
		"of another name": {batchv1.ReplaceConcurrent, nil, job(func(j *batchv1.Job) { j.Name = "tick-now" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "tick", Namespace: "default", UID: "1"},
				Spec: batchv1.CronJobSpec{ConcurrencyPolicy: tt.policy}, Status: batchv1.CronJobStatus{Active: tt.active}}
			c := fake.NewClientset(cron, tt.job)
			f := clientinformers.NewSharedInformerFactory(c, 0)
			f.Batch().V1().Jobs().Informer()
			f.Batch().V1().CronJobs().Informer()
			f.StartWithContext(t.Context())
			f.WaitForCacheSyncWithContext(t.Context())
			next := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "tick-29453762", OwnerReferences: owned}}
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

// TestForgottenJobOfNow: a Job that was made before its leader was lost, and that the CronJob's status does not tell of, is told of, and the
// time that it is of is done with.
func TestForgottenJobOfNow(t *testing.T) {
	at := time.Now().Truncate(time.Minute)
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "tick", Namespace: "default", UID: "1", CreationTimestamp: metav1.Time{Time: at.Add(-time.Second)}},
		Spec: batchv1.CronJobSpec{Schedule: "* * * * *"}}
	var there []runtime.Object
	for n := range 3 { // and of the minutes that may begin meanwhile
		of := at.Add(time.Duration(n) * time.Minute)
		there = append(there, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("tick-", of.Unix()/60), Namespace: "default", UID: types.UID(fmt.Sprint(n)),
			Annotations:     map[string]string{batchv1.CronJobScheduledTimestampAnnotation: of.UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cron, batchv1.SchemeGroupVersion.WithKind("CronJob"))}}})
	}
	c := fake.NewClientset(append(there, cron)...)
	f := clientinformers.NewSharedInformerFactory(c, 0)
	controller, err := cronjob.NewControllerV2(t.Context(), f.Batch().V1().Jobs(), f.Batch().V1().CronJobs(), withKnownJobs{c, f.Batch()})
	if err != nil {
		t.Fatal(err)
	}
	f.StartWithContext(t.Context())
	go controller.Run(t.Context(), 1)
	told, err := c.BatchV1().CronJobs("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		now, err := c.BatchV1().CronJobs("default").Get(t.Context(), "tick", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if s := now.Status; s.LastScheduleTime != nil && len(s.Active) > 0 {
			return
		}
		select {
		case <-told.ResultChan():
		case <-time.After(30 * time.Second):
			t.Fatalf("its status is %+v", now.Status)
		}
	}
}
