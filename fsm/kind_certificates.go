package fsm

import (
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/berth-dev/berth/codec"
)

// CertificateRequests is the resource of the certificates that somebody asks for.
const CertificateRequests = "certificatesigningrequests"

// SinceCertificates is the version of the rules that brought requests for certificates.
const SinceCertificates = 11

// MaxCertificateRequests bounds those that are kept. Workers that have yet to join can make
// any number; what was answered goes after an hour, what nobody answers after a day.
const MaxCertificateRequests = 16384

func certificateRequestKind() ObjectKind {
	return ObjectKind{
		Group: certificatesv1.GroupName, Resource: CertificateRequests, Kind: "CertificateSigningRequest", ClusterScoped: true,
		Since: SinceCertificates, MostInNamespace: MaxCertificateRequests,
		New: func() codec.Object { return new(certificatesv1.CertificateSigningRequest) },
	}
}
