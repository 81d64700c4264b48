package e2e

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A cluster that is not ready yet says that it is not, and never that something
// is broken or not there.
func TestAnswersFromTheFirstMoment(t *testing.T) {
	c := newCluster(t, server("server-1", "bootstrap_expect = 3"), server("server-2", "bootstrap_expect = 3"), server("server-3", "bootstrap_expect = 3"))
	answers := map[string]int{}
	for _, s := range c.Servers() {
		c.eventually(t, s.Name+" to list the namespaces", func(ctx context.Context) error {
			list, err := s.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			var status apierrors.APIStatus
			switch {
			case err == nil && len(list.Items) == 0:
				answers["nothing there"]++
				return errors.New("there are none")
			case errors.As(err, &status) && !apierrors.IsServiceUnavailable(err):
				t.Errorf("%s: %v", s.Name, err)
			case err != nil:
				answers[err.Error()]++
			}
			return err
		})
	}
	t.Logf("%v", answers)
	c.verify(t, 3)
}
