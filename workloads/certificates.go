package workloads

import (
	"context"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates/approver"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/pki"
)

const (
	// certificateWorkers is how many requests each controller looks at at a time.
	certificateWorkers = 5

	// SignerUnavailable is the condition of a request that nobody could sign when it was
	// approved. It is signed once a server leads that can.
	SignerUnavailable certificatesv1.RequestConditionType = "SignerUnavailable"
)

// Signers are the names of the signers that servers sign for.
func Signers() []string {
	return []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName}
}

// newCertificates makes Kubernetes' own controllers that approve, sign and clean up requests
// for certificates.
func newCertificates(ctx context.Context, config func(controller string) *rest.Config, f factory, authority pki.Files) ([]begun, error) {
	clients := map[string]kubernetes.Interface{}
	for _, name := range []string{"csrapproving", "csrsigning", "csrcleaner"} {
		c, err := kubernetes.NewForConfig(config(name))
		if err != nil {
			return nil, fmt.Errorf("client of the controller %s: %w", name, err)
		}
		clients[name] = c
	}
	requests := f.Certificates().V1().CertificateSigningRequests()
	approving := approver.NewCSRApprovingController(ctx, clients["csrapproving"], requests)
	cleaning := cleaner.NewCSRCleanerController(clients["csrcleaner"].CertificatesV1().CertificateSigningRequests(), requests)
	signing := newSigning(ctx, clients["csrsigning"], requests, authority)
	return []begun{
		func(ctx context.Context) { approving.Run(ctx, certificateWorkers) },
		func(ctx context.Context) { cleaning.Run(ctx, 1) },
		signing,
	}, nil
}

// newSigning makes the controllers that sign, or the one that says why nobody does.
func newSigning(ctx context.Context, client kubernetes.Interface, requests informers.CertificateSigningRequestInformer, authority pki.Files) begun {
	if authority.Key == "" {
		return unsigned(ctx, client, requests, "this cluster's leading server held no key of the authority (tls.ca_key_file)")
	}
	if _, err := pki.OpenAuthority(authority); err != nil { // it could be read when the server started
		klog.FromContext(ctx).Error(err, "requests for certificates are not signed")
		return unsigned(ctx, client, requests, "the leading server could not read the key of the authority; its log says why")
	}
	var signers []*signer.CSRSigningController
	for _, name := range Signers() {
		s, err := signer.NewCSRSigningController(ctx, "csrsigning", name, client, requests, authority.CA, authority.Key, pki.DefaultValidity)
		if err != nil {
			klog.FromContext(ctx).Error(err, "requests for certificates are not signed", "signer", name)
			continue
		}
		signers = append(signers, s)
	}
	return func(ctx context.Context) {
		var all []func(ctx context.Context)
		for _, s := range signers {
			all = append(all, func(ctx context.Context) { s.Run(ctx, certificateWorkers) })
		}
		guard.Together(ctx, all...)
	}
}

// unsigned makes a controller that says of approved requests why nobody signs them.
func unsigned(ctx context.Context, client kubernetes.Interface, requests informers.CertificateSigningRequestInformer, why string) begun {
	tell := func(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
		switch {
		case !certificates.IsCertificateRequestApproved(r), certificates.HasTrueCondition(r, certificatesv1.CertificateFailed),
			certificates.HasTrueCondition(r, SignerUnavailable), !slices.Contains(Signers(), r.Spec.SignerName):
			return nil
		}
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: SignerUnavailable, Status: corev1.ConditionTrue, Reason: "NoKey", Message: why, LastUpdateTime: metav1.NewTime(time.Now()),
		})
		_, err := client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{})
		return err
	}
	c := certificates.NewCertificateController(ctx, "csrunsigned", client, requests, tell)
	return func(ctx context.Context) { c.Run(ctx, 1) }
}
