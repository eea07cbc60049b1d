// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "SpecStreamKit",
    platforms: [.iOS(.v18), .macOS(.v15)],
    products: [.library(name: "SpecStreamKit", targets: ["SpecStreamKit"])],
    targets: [
        .target(name: "SpecStreamKit"),
        .testTarget(name: "SpecStreamKitTests", dependencies: ["SpecStreamKit"]),
    ]
)
