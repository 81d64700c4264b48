# ~/.config/berth/cli.hcl of somebody who works with the cluster.

current_context = "example"

context "example" {
  addresses = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
  tls {
    ca_file   = "/etc/berth/tls/ca.pem"
    cert_file = "/etc/berth/tls/client-ada.pem"
    key_file  = "/etc/berth/tls/client-ada-key.pem"
  }
}
