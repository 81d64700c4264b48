package sim

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
)

const (
	ticking = "tick" // a CronJob, whose Jobs come one after the other; each goes on when the next is due where that is a minute later
	chiming = "toll" // one whose Jobs may go on at once, each begun within a deadline
	// chimeDeadline is how late a Job of the second may be made. It is shorter than the time between two of them, so that there is
	// always one at most which is missed: of several Kubernetes would make the Job of the last alone.
	chimeDeadline = 50 * time.Second
	// chimeServed is for how long somebody has led, within the deadline, when the Job has to be there: a controller that could not
	// write tries again after ever more of a second.
	chimeServed = 15 * time.Second
)

// schedule makes the CronJobs.
func (u *user) schedule(ctx context.Context) {
	few, deadline := int32(2), int64(chimeDeadline/time.Second)
	for _, cron := range []struct {
		name string
		spec batchv1.CronJobSpec
	}{
		{ticking, batchv1.CronJobSpec{ConcurrencyPolicy: batchv1.ForbidConcurrent, JobTemplate: batchv1.JobTemplateSpec{Spec: jobOf(ticking, 40)}}},
		{chiming, batchv1.CronJobSpec{ConcurrencyPolicy: batchv1.AllowConcurrent, StartingDeadlineSeconds: &deadline,
			JobTemplate: batchv1.JobTemplateSpec{Spec: jobOf(chiming, 3)}}},
	} {
		cron.spec.Schedule, cron.spec.SuccessfulJobsHistoryLimit = fmt.Sprintf("*/%d * * * *", u.world.config.Pace.chimes/time.Minute), &few
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.BatchV1().CronJobs(space).Create(ctx, &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: cron.name}, Spec: cron.spec}, metav1.CreateOptions{})
			return err
		})
	}
}

// suspend ends the CronJobs, or there would be no rest.
func (u *user) suspend(ctx context.Context) {
	for _, name := range []string{ticking, chiming} {
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.BatchV1().CronJobs(space).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"suspend":true}}`), metav1.PatchOptions{})
			return unlessGone(err)
		})
	}
}

// lookAtCrons: of a time of the schedule the Job is made, once somebody has led for a while within the deadline.
func (w *World) lookAtCrons(m *machine, v *fsm.View) {
	now := time.Now()
	at := now.Truncate(w.config.Pace.chimes)
	from := at
	if m.serves().After(at) {
		from = m.serves()
	}
	if !m.server.IsLeader() || now.Sub(from) < chimeServed || now.Sub(at) > chimeDeadline {
		return
	}
	o, ok := v.Objects.Get(fsm.ObjectKey("cronjobs", space, chiming))
	if !ok {
		return
	}
	cron, ok := o.Value.(*batchv1.CronJob)
	if !ok || cron.Spec.Suspend != nil && *cron.Spec.Suspend || !cron.CreationTimestamp.Time.Before(at) {
		return
	}
	if !w.checker.hasChimed(at) {
		w.checker.violated("server %s leads with a right clock since %s, and CronJob %s has no Job for %s; its status is %+v", m.name, m.serves().UTC().Format("15:04:05"), chiming, at.UTC().Format("15:04"), cron.Status)
	}
}

// hasChimed says whether a Job was made for a time of the schedule.
func (k *checker) hasChimed(at time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mirror.chimes[at.Unix()]
}

// chime notes the Job of a time, whatever becomes of it.
func (m *mirror) chime(job *batchv1.Job) {
	by := metav1.GetControllerOf(job)
	if by == nil || by.Kind != "CronJob" || by.Name != chiming {
		return
	}
	if at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]); err == nil {
		m.chimes[at.Unix()] = true
	}
}
