// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "WritingTools",
    platforms: [.iOS(.v18), .macOS(.v15)],
    dependencies: [
        .package(path: ".."),
        .package(url: "https://github.com/huggingface/swift-transformers", from: "1.3.0"),
    ],
    targets: [
        .executableTarget(
            name: "WritingTools",
            dependencies: [
                "SpecStreamKit",
                .product(name: "Tokenizers", package: "swift-transformers"),
            ]
        )
    ]
)
