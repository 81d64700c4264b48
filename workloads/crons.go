package workloads

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/kubernetes"
	typedbatchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	jobutil "k8s.io/kubernetes/pkg/controller/job/util"
)

// withKnownJobs is the CronJob controller's client. That controller knows which Jobs of a
// CronJob go on by the CronJob's status, and writes it after it has made a Job. If its
// leader is lost in between and the Job goes on to the next time of the schedule, Kubernetes makes
// another beside it, whatever the CronJob's concurrencyPolicy is. Here the status is
// mended first, and the controller comes again.
type withKnownJobs struct {
	kubernetes.Interface
	listed batch.Interface
}

// BatchV1 implements kubernetes.Interface.
func (c withKnownJobs) BatchV1() typedbatchv1.BatchV1Interface {
	return batchWithKnownJobs{c.Interface.BatchV1(), c.listed}
}

type batchWithKnownJobs struct {
	typedbatchv1.BatchV1Interface
	listed batch.Interface
}

// Jobs implements typedbatchv1.JobsGetter.
func (b batchWithKnownJobs) Jobs(namespace string) typedbatchv1.JobInterface {
	return knownJobs{b.BatchV1Interface.Jobs(namespace), b, namespace}
}

type knownJobs struct {
	typedbatchv1.JobInterface
	batch     batchWithKnownJobs
	namespace string
}

// Create implements typedbatchv1.JobInterface. It is a conflict if the CronJob did not know of a Job that goes on.
//
// The Job gets its namespace, in which the controller asks for it if it is there already (of version 1.36 it asks in none, and never
// gets on: kubernetes/kubernetes#136918).
func (j knownJobs) Create(ctx context.Context, job *batchv1.Job, options metav1.CreateOptions) (*batchv1.Job, error) {
	job.Namespace = j.namespace
	cron, forgotten, err := j.forgotten(job)
	if err != nil {
		return nil, err
	}
	if len(forgotten) == 0 {
		return j.JobInterface.Create(ctx, job, options)
	}
	known := cron.DeepCopy()
	for _, f := range forgotten {
		known.Status.Active = append(known.Status.Active, corev1.ObjectReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: f.Namespace, Name: f.Name, UID: f.UID, ResourceVersion: f.ResourceVersion,
		})
	}
	if _, err := j.batch.CronJobs(j.namespace).UpdateStatus(ctx, known, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return nil, apierrors.NewConflict(batchv1.Resource("jobs"), job.Name, fmt.Errorf("Job %s of CronJob %s goes on", forgotten[0].Name, cron.Name))
}

// maxForgotten is how many are told of at a time.
const maxForgotten = 16

// forgotten are the Jobs that go on of the CronJob that makes a Job, if no other may go
// on beside that one, and that its status does not tell of. One of the same name is not among them, as of that the controller hears, nor
// is one that somebody else has made from the CronJob's template (kubectl create job --from): such go on beside, as in Kubernetes.
func (j knownJobs) forgotten(made *batchv1.Job) (*batchv1.CronJob, []*batchv1.Job, error) {
	owner := metav1.GetControllerOf(made)
	if owner == nil || owner.Kind != "CronJob" {
		return nil, nil, nil
	}
	cron, err := j.batch.listed.V1().CronJobs().Lister().CronJobs(j.namespace).Get(owner.Name)
	if apierrors.IsNotFound(err) || err == nil && (cron.UID != owner.UID || cron.Spec.ConcurrencyPolicy == batchv1.AllowConcurrent) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	jobs, err := j.batch.listed.V1().Jobs().Lister().Jobs(j.namespace).List(labels.Everything())
	if err != nil {
		return nil, nil, err
	}
	known := map[string]bool{made.Name: true}
	for _, a := range cron.Status.Active {
		known[a.Name] = true
	}
	var out []*batchv1.Job
	for _, job := range jobs {
		if len(out) < maxForgotten && !known[job.Name] && isOfItsSchedule(cron, job) && !jobutil.IsJobFinished(job) {
			out = append(out, job)
		}
	}
	return cron, out, nil
}

// isOfItsSchedule: the controller has made the Job, for a time of the CronJob's schedule.
func isOfItsSchedule(cron *batchv1.CronJob, job *batchv1.Job) bool {
	at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	return err == nil && metav1.IsControlledBy(job, cron) && job.Name == fmt.Sprintf("%s-%d", cron.Name, at.Unix()/60)
}
