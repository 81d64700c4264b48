package quotas

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
)

// TestSumsOfClaimsDoNotWrap: however large claims are, and whatever their statuses say.
func TestSumsOfClaimsDoNotWrap(t *testing.T) {
	var x Index
	x.Put(nil, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: list("requests.storage", "1Pi")}}, true)
	huge := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: list("storage", "1")}}}
	huge.Status.AllocatedResources = list("storage", "100E")
	const many = 1 << 15 // as many of the largest are 2^63
	for range many {
		x.PutItem("default", nil, VolumeClaim(huge))
	}
	used := x.Status("default/q").Used["requests.storage"]
	if want := resource.MustParse("8Ei"); used.Cmp(want) != 0 || many*uint64(model.MaxAmount) != 1<<63 { // the API's quantities end there
		t.Errorf("%s are used, want %s", used.String(), want.String())
	}
	if why := x.RefuseItem("default", nil, VolumeClaim(huge)); why == "" {
		t.Error("one more is allowed")
	}
}

// TestWhatNoScopeMeans: numbers of objects are not what a quota with scopes is about, and a bound of none refuses none.
func TestWhatNoScopeMeans(t *testing.T) {
	var x Index
	x.Put(nil, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: list("count/secrets", "0"), Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort},
	}}, true)
	more := map[string]int64{"count/secrets": 1}
	if why := x.RefuseObjects("default", more, false); why != "" {
		t.Error(why)
	}
	if why := x.RefuseObjects("default", more, true); why == "" {
		t.Error("by earlier rules one is refused")
	}
}
