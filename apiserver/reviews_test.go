package apiserver

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A review of what is no token says so.
func TestReviewsOfWhatIsNoToken(t *testing.T) {
	s := share(t)
	for _, token := range []string{" x", "  ", "x y"} {
		review, err := s.client(t).AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || review.Status.Authenticated {
			t.Errorf("%q: %v, %v", token, review, err)
		}
	}
}
