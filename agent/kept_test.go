package agent_test

import (
	"bytes"
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/fsm"
)

// claim asks for a volume, of a class and with attributes.
func claim(name, class, attributes string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Mi")}},
	}}
	if attributes != "" {
		c.Spec.VolumeAttributesClassName = &attributes
	}
	return c
}

// keptRules are what is kept beside workloads, each in a namespace of its own.
var keptRules = map[string]func(w *workloads){
	"a class of attributes that a claim names stays until it does so no more": func(w *workloads) {
		classes := w.StorageV1().VolumeAttributesClasses()
		must[*storagev1.VolumeAttributesClass](w.T)(classes.Create(w.Context(), &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast"}, DriverName: "example.com", Parameters: map[string]string{"iops": "1"}}, metav1.CreateOptions{}))
		must[*corev1.PersistentVolumeClaim](w.T)(w.CoreV1().PersistentVolumeClaims(w.ns).Create(w.Context(), claim("data", "example.com", "fast"), metav1.CreateOptions{}))
		if err := classes.Delete(w.Context(), "fast", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		if c := must[*storagev1.VolumeAttributesClass](w.T)(classes.Get(w.Context(), "fast", metav1.GetOptions{})); c.DeletionTimestamp == nil {
			w.Errorf("it is %+v", c)
		}
		if err := w.CoreV1().PersistentVolumeClaims(w.ns).Delete(w.Context(), "data", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.await("it to go", func(v *fsm.View) bool {
			return row[*storagev1.VolumeAttributesClass](v, fsm.VolumeAttributesClasses, "", "fast") == nil
		})
	},
	"a secret is filled with the token of its account": func(w *workloads) {
		must[*corev1.ServiceAccount](w.T)(w.CoreV1().ServiceAccounts(w.ns).Create(w.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}, metav1.CreateOptions{}))
		of := func(name, account string) {
			must[*corev1.Secret](w.T)(w.CoreV1().Secrets(w.ns).Create(w.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: account}}, Type: corev1.SecretTypeServiceAccountToken}, metav1.CreateOptions{}))
		}
		secret := func(v *fsm.View, name string) *corev1.Secret { return row[*corev1.Secret](v, "secrets", w.ns, name) }
		believed := func(token []byte) bool {
			r := must[*authenticationv1.TokenReview](w.T)(w.AuthenticationV1().TokenReviews().Create(w.Context(),
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(token)}}, metav1.CreateOptions{}))
			return r.Status.Authenticated && r.Status.User.Username == "system:serviceaccount:"+w.ns+":ci"
		}
		of("nobodys", "nobody")
		w.await("one that names nobody to go", func(v *fsm.View) bool { return secret(v, "nobodys") == nil })
		of("token", "ci")
		of("other", "ci")
		var first, second *corev1.Secret
		w.await("both to be filled", func(v *fsm.View) bool {
			first, second = secret(v, "token"), secret(v, "other")
			return len(first.Data["token"]) > 0 && len(second.Data["token"]) > 0
		})
		if !believed(first.Data["token"]) || !believed(second.Data["token"]) || string(first.Data["namespace"]) != w.ns || !bytes.Contains(first.Data["ca.crt"], []byte("CERTIFICATE")) {
			w.Errorf("it holds %q", first.Data)
		}
		if err := w.CoreV1().Secrets(w.ns).Delete(w.Context(), "other", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		if believed(second.Data["token"]) || !believed(first.Data["token"]) {
			w.Error("a token is believed as long as its secret is there")
		}
		// Whose key is revoked gets another.
		if err := w.CoreV1().RESTClient().Post().AbsPath(operator.PathSigningKey).Body([]byte(`{"revoke":true}`)).Do(w.Context()).Error(); err != nil {
			w.Fatal(err)
		}
		var again *corev1.Secret
		w.await("another token", func(v *fsm.View) bool {
			again = secret(v, "token")
			return len(again.Data["token"]) > 0 && !bytes.Equal(again.Data["token"], first.Data["token"])
		})
		if believed(first.Data["token"]) || !believed(again.Data["token"]) {
			w.Error("the first is revoked, and the other one is good")
		}
		if err := w.CoreV1().ServiceAccounts(w.ns).Delete(w.Context(), "ci", metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.await("it to go with its account", func(v *fsm.View) bool { return secret(v, "token") == nil })
		if believed(again.Data["token"]) {
			w.Error("the account has gone, and its token is believed")
		}
	},
	"a local volume goes where no volume has a directory": func(w *workloads) {
		must[*storagev1.StorageClass](w.T)(w.StorageV1().StorageClasses().Create(w.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "here"},
			Provisioner: "berth.dev/local", VolumeBindingMode: to(storagev1.VolumeBindingWaitForFirstConsumer)}, metav1.CreateOptions{}))
		must[*corev1.PersistentVolumeClaim](w.T)(w.CoreV1().PersistentVolumeClaims(w.ns).Create(w.Context(), claim("data", "here", ""), metav1.CreateOptions{}))
		p := pod("web", "10m")
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		must[*corev1.Pod](w.T)(w.CoreV1().Pods(w.ns).Create(w.Context(), p, metav1.CreateOptions{}))
		w.await("the pod to run", podRuns(w.ns+"/web"))
		volume := row[*corev1.PersistentVolumeClaim](w.server.View(), fsm.VolumeClaims, w.ns, "data").Spec.VolumeName
		for _, err := range []error{
			w.CoreV1().Pods(w.ns).Delete(w.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: to(int64(0))}),
			w.CoreV1().PersistentVolumeClaims(w.ns).Delete(w.Context(), "data", metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				w.Fatal(err)
			}
		}
		w.await("its volume to go", func(v *fsm.View) bool {
			return volume != "" && row[*corev1.PersistentVolume](v, fsm.PersistentVolumes, "", volume) == nil
		})
	},
}

// TestKept: see keptRules.
func TestKept(t *testing.T) {
	w := newWorkloads(t, "kept")
	n := 0
	for name, rule := range keptRules {
		n++
		t.Run(name, func(t *testing.T) { rule(w.in(t, fmt.Sprintf("kept-%d", n))) })
	}
}
