# Builds the image with a container engine. `.ci/image` builds the same root filesystem without one.
#
#   docker build -t REGISTRY/wva:0.1.0 .
#
# The last stage has no base image, because the program is linked statically. From glibc 2.34 on, the static resolver needs no shared
# library: the hosts file, search domains and DNS work in an empty root filesystem (`.ci/image --smoke` runs the program in one).
# /manager is the command in Deployments of WVA's controllers, /kubectl-wva the plugin of kubectl (docs/kubectl.md).

FROM rust:1.95.0-bookworm AS build
WORKDIR /src
# Use the toolchain of this stage, without the development components that rust-toolchain.toml lists.
ENV RUSTUP_TOOLCHAIN=1.95.0
COPY . .
# --target limits static linking to the program. Build scripts and procedural macros cannot be static.
RUN target="$(uname -m)-unknown-linux-gnu" \
 && RUSTFLAGS="-C target-feature=+crt-static" cargo build --profile dist --locked --bin wva --target "$target" \
 && mkdir -p /image/etc/ssl/certs \
 && cp "target/$target/dist/wva" /image/wva \
 && ln --symbolic wva /image/manager \
 && ln --symbolic wva /image/kubectl-wva \
 && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
 && echo "nonroot:x:65532:65532:nonroot:/:/sbin/nologin" >/image/etc/passwd \
 && echo "nonroot:x:65532:" >/image/etc/group

FROM scratch
LABEL org.opencontainers.image.title=wva org.opencontainers.image.licenses=Apache-2.0
COPY --from=build /image/ /
USER 65532:65532
EXPOSE 8443
ENTRYPOINT ["/wva"]
